"""The kinds of what is recorded, as libtaskd numbers them, and what the text of a mark says of its kind."""

STEP, DATA_LOADER, SAVE_CHECKPOINT, FORWARD, COMMUNICATION = 1, 2, 3, 4, 5
USER, LAST = 16, 63  # kinds that a program can give a meaning of its own

KINDS = {"dataloader": DATA_LOADER, "save_checkpoint": SAVE_CHECKPOINT, "forward": FORWARD}


def step_number(text):
    """The number of the step that a mark such as `step 7` means; None where it means none."""
    _, step, after = text.partition("step")
    after = after.lstrip(" _=:#")
    digits = len(after) - len(after.lstrip("0123456789"))
    return int(after[:digits]) & 0xFFFFFFFFFFFFFFFF if step and digits else None
