"""Optimizers: a step of one begins when backward is over, and some records end then."""

from taskd import _steps


def install(module, native):
    """`module` is torch.optim.optimizer."""

    def before_step(*_):
        for then in _steps.at_begin:
            then()

    before_step._torchdynamo_disable = True  # torch.compile leaves it out of its graphs without a warning
    module.register_optimizer_step_pre_hook(before_step)
