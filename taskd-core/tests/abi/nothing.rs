//! Where there is nothing to record into, every function does nothing.

use crate::library::exports::*;
use std::ffi::CStr;
use std::ptr::null;

#[allow(unsafe_code)] // a C string
fn why() -> String {
    // SAFETY: the function returns a C string that is never freed.
    unsafe { CStr::from_ptr(taskd_why()) }.to_str().unwrap().to_owned()
}

#[test]
#[allow(unsafe_code)] // the functions are C's
fn a_process_that_no_launcher_has_started_records_nothing() {
    let call_all = || {
        for kind_and_name in [0, 1, 5, 16, 63, 64, u64::MAX] {
            assert_eq!((taskd_begin(kind_and_name), taskd_begin_step(kind_and_name)), (0, 0));
            taskd_mark(kind_and_name);
            taskd_counter(kind_and_name, 1.0);
            taskd_end(kind_and_name);
            taskd_hooked(kind_and_name as u32);
        }
        // SAFETY: null, or what is there and of the given length.
        unsafe {
            assert_eq!(
                (taskd_name(null(), 7), taskd_name(c"x".as_ptr(), 1), taskd_begin_communication(1, null())),
                (0, 0, 0)
            );
            taskd_except(1, null(), 0);
            taskd_except(1, c"x".as_ptr(), 1);
            assert_eq!(*taskd_switches(), 0);
        }
    };
    assert_eq!(why(), "the recorder was not opened, or another thread opens it");
    call_all();
    assert_eq!(taskd_open(), 0);
    assert_eq!(why(), "no launcher has prepared memory for it: TASKD_LIFELINE is not set");
    call_all();
    assert_eq!(taskd_open(), 0, "once is enough");
}
