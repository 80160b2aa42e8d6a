//! States of a thread in which a call is not an operation of the program, such as a framework that traces: each state
//! is a function or an object that the framework's hook names, and is asked for at every call.

use super::api::Object;
use super::objects::{Outcome, Python, Raised};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

/// What answers for one state. All functions take no argument, raise nothing, and answer for the calling thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum Gate {
    /// A C function whose integer is not 0 in this state.
    Count(unsafe extern "C" fn() -> i64),
    /// A C function that returns the address of a pointer, which is not null in this state (`std::shared_ptr`).
    Pointer(unsafe extern "C" fn() -> *const *const c_void),
    /// A C function that returns the address of two pointers, which differ in this state (`std::vector`).
    Range(unsafe extern "C" fn() -> *const [*const c_void; 2]),
    /// A word in memory that is not 0 in this state, and never freed.
    Word(&'static AtomicU64),
    /// A dictionary with a key whose value is true in this state.
    Item { dict: *mut Object, key: *mut Object },
    /// A Python function whose result is true in this state.
    Call(*mut Object),
}

impl Gate {
    /// Reads a gate: a tuple of a form, and of the address, or the object and the key, that the form needs.
    pub(super) fn read(python: Python, tuple: *mut Object) -> Outcome<Gate> {
        let form = python.int(python.tuple_item(tuple, 0)?)?;
        let what = python.tuple_item(tuple, 1)?;
        // SAFETY: the caller passes the address of a function or word of the form's type, as the module's `__doc__` requires.
        Ok(unsafe {
            match form {
                0 => Gate::Call(python.keep(what).into_raw()),
                1 => Gate::Count(std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> i64>(
                    python.address(what)?,
                )),
                2 => Gate::Pointer(std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const *const c_void>(
                    python.address(what)?,
                )),
                3 => Gate::Range(
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const [*const c_void; 2]>(
                        python.address(what)?,
                    ),
                ),
                4 => Gate::Word(AtomicU64::from_ptr(python.address(what)?.cast())),
                5 => Gate::Item {
                    dict: python.keep(what).into_raw(),
                    key: python.keep(python.tuple_item(tuple, 2)?).into_raw(),
                },
                _ => return Err(python.raise(c"no such form of a gate")),
            }
        })
    }

    /// Returns true if this thread is in the state.
    #[inline]
    pub(super) fn is_closed(&self, python: Python) -> Outcome<bool> {
        // SAFETY of all blocks: the functions have these types, as `read` requires, and return valid addresses.
        Ok(match *self {
            // SAFETY: as above.
            Gate::Count(ask) => unsafe { ask() != 0 },
            // SAFETY: as above.
            Gate::Pointer(ask) => unsafe { !(*ask()).is_null() },
            Gate::Range(ask) => {
                // SAFETY: as above.
                let [begin, end] = unsafe { *ask() };
                begin != end
            }
            Gate::Word(word) => word.load(Ordering::Relaxed) != 0,
            Gate::Item { dict, key } => match python.value(dict, key) {
                Some(value) => python.is_true(value)?,
                None => false,
            },
            Gate::Call(what) => python.is_true(python.call_none(what)?.get())?,
        })
    }
}

/// Returns true if this thread is in one of the states; also if one cannot be asked for, so that the caller, which asks
/// again in Python, reports that.
#[inline]
pub(super) fn is_any_closed(python: Python, gates: &[Gate]) -> bool {
    gates.iter().any(|gate| {
        gate.is_closed(python).unwrap_or_else(|Raised| {
            python.clear_error();
            true
        })
    })
}
