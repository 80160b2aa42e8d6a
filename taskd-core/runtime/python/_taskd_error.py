"""Records the exception that ends a rank in the error file (TASKD_ERROR_FILE), in the format of torchrun's ranks.

The file is written if the framework has written none. An exception that the program or a library has printed, and after
which the program continues, is recorded too, without the mark of the rank's end. This module must parse on Python 3.6
and later.
"""

import os
import sys
import time

MESSAGE_CHARS_MAX, CALLSTACK_CHARS_MAX = 32768, 131072  # of an error record; the end of a longer call stack is kept


def install(steps, say):
    """Has `sys.excepthook` write an uncaught exception to the error file and call the previous hook."""
    from _thread import get_ident

    previous, main = sys.excepthook, get_ident()

    def excepthook(kind, value, trace):
        # A standby without a rank has no error file, and would park at the variable.
        has_no_rank = getattr(sys.modules.get("_taskd_standby_prepare"), "current", None)
        path = None if has_no_rank else os.environ.get("TASKD_ERROR_FILE")
        is_error = issubclass(kind, Exception) or kind.__name__ == "StepAborted"  # not an exit or an interrupt
        if path and steps.is_rank() and is_error:
            try:
                is_last = get_ident() == main and not is_caught(trace)
                is_end = is_last and steps.ends_with_us()
                # otherwise the framework has written the file
                if not os.path.exists(path) or is_last and is_to_be_replaced(path, is_end):
                    write_record(path, kind, value, trace, steps.step.value, is_end, behind_given_up())
            except Exception:
                pass
        previous(kind, value, trace)
        if is_error and behind_given_up():
            say(behind_given_up())

    sys.excepthook = excepthook


def behind_given_up():
    """Returns a remark on an exception in the program's code after the `with` block of an aborted step; "" for any
    other exception."""
    loop = getattr(getattr(sys.modules.get("taskd._session"), "current", None), "loop", None)
    if loop is None or not loop.in_step or loop.attempt.body_completed is not False:
        return ""
    return (
        "raised behind `with step:` of step %d, which was not completed; such code belongs under "
        "`if step.completed:`" % loop.number
    )


def is_caught(trace):
    """Returns true if the program continues: the program itself, or a library that called Python code (PyErr_Print),
    prints the exception. If the exception ends the program, the main thread has no frame of the traceback and no module
    frame any more."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" or trace is not None and trace.tb_frame is frame:
            return True
        frame = frame.f_back
    return trace is None


def is_to_be_replaced(path, is_end):
    """Returns true if an exception that ends the process replaces the existing record: true for a record of this
    module, whose exception was caught. The framework's record is of this exception: it stays, and is marked as the
    rank's end if `is_end`."""
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

    whole = "%s.%d" % (path, os.getpid())  # so that no process reads half a record
    try:
        with open(whole, "w") as file:
            json.dump(record, file)
        os.rename(whole, path)
    except Exception:
        os.unlink(whole)
