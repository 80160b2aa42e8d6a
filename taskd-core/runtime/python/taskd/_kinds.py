"""The kinds of records, as libtaskd numbers them, and the kinds that the texts of marks name."""

STEP, DATA_LOADER, SAVE_CHECKPOINT, FORWARD, COMMUNICATION = 1, 2, 3, 4, 5
USER, LAST = 16, 63  # the first and last kind that a program can define

KINDS = {"dataloader": DATA_LOADER, "save_checkpoint": SAVE_CHECKPOINT, "forward": FORWARD}


def step_number(text):
    """Returns the number of the step that a mark such as `step 7` names; None if it names none."""
    _, step, after = text.partition("step")
    after = after.lstrip(" _=:#")
    digits = len(after) - len(after.lstrip("0123456789"))
    return int(after[:digits]) & 0xFFFFFFFFFFFFFFFF if step and digits else None
