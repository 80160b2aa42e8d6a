"""The record of the exception that ends a rank: the error file (TASKD_ERROR_FILE), as torchrun's ranks write it.

It is written where the framework has written none, also of an exception that the program or a library has printed and behind which
it goes on: that one is not marked as the rank's end. It must parse on Python 3.6 and later.
"""

import os
import sys
import time

MESSAGE_CHARS_MAX, CALLSTACK_CHARS_MAX = 32768, 131072  # of an error record; of a call stack the end is kept


def install(steps, say):
    """Writes an exception that nobody caught to the error file, then does what would have been done without."""
    from _thread import get_ident

    previous, main = sys.excepthook, get_ident()

    def excepthook(kind, value, trace):
        is_nobody = getattr(sys.modules.get("_taskd_ahead"), "current", None)  # no rank yet, whose file would be asked for
        path = None if is_nobody else os.environ.get("TASKD_ERROR_FILE")
        is_error = issubclass(kind, Exception) or kind.__name__ == "StepAborted"  # an exit or an interrupt is none
        if path and steps.is_rank() and is_error:
            try:
                is_last = get_ident() == main and not is_caught(trace)
                is_end = is_last and steps.ends_with_us()
                if not os.path.exists(path) or is_last and is_to_be_replaced(path, is_end):  # else the framework was first
                    write_record(path, kind, value, trace, steps.step.value, is_end, behind_given_up())
            except Exception:
                pass
        previous(kind, value, trace)
        if is_error and behind_given_up():
            say(behind_given_up())

    sys.excepthook = excepthook


def behind_given_up():
    """What has to be known of an exception in the program's code behind the `with` of a step that was given up; else nothing."""
    loop = getattr(getattr(sys.modules.get("taskd._session"), "current", None), "loop", None)
    if loop is None or not loop.in_step or loop.after is not False:
        return ""
    return "raised behind `with step:` of step %d, which was not completed; such code belongs under `if step.completed:`" % loop.number


def is_caught(trace):
    """Whether the program goes on: it has an exception printed, or a library has (PyErr_Print) that called Python code. When the
    program ends by one, no frame that the exception has passed is left in the main thread, and no module runs there any more."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" or trace is not None and trace.tb_frame is frame:
            return True
        frame = frame.f_back
    return trace is None


def is_to_be_replaced(path, is_end):
    """A record that is there when an exception ends the process: an own one, of an exception that was caught, makes room; the
    framework's is of this one, and only says from now on that the rank ends by it, where it does."""
    import json

    with open(path) as file:
        record = json.load(file)
    extra = record["message"].setdefault("extraInfo", {})
    if "taskd_step" in extra:
        return True
    if is_end:
        extra["taskd_uncaught"] = "1"
        put_record(path, record)
    return False


def write_record(path, kind, value, trace, step, is_end, remark):
    import traceback

    extra = {
        "py_callstack": "".join(traceback.format_exception(kind, value, trace))[-CALLSTACK_CHARS_MAX:],
        "timestamp": str(int(time.time())),
        "taskd_step": str(step),
    }
    if is_end:
        extra["taskd_uncaught"] = "1"
    message = ("%s: %s%s" % (kind.__name__, value, remark and " (%s)" % remark))[:MESSAGE_CHARS_MAX]
    put_record(path, {"message": {"message": message, "extraInfo": extra}})


def put_record(path, record):
    import json

    whole = "%s.%d" % (path, os.getpid())  # so that nobody reads half a record
    try:
        with open(whole, "w") as file:
            json.dump(record, file)
        os.rename(whole, path)
    except Exception:
        os.unlink(whole)
