//! The module's functions: they convert Python's numbers and strings to the types of the C functions, and back.
//!
//! An argument of the wrong type raises `TypeError` or `OverflowError`, as in any Python function; nothing else is ever
//! raised.

use super::super::exports::{self, RawCommunication};
use super::api::{Api, Object};
use super::objects::{Outcome, Python, Ref};
use super::{open_works, operations, watched};
use std::ffi::c_char;
use std::ptr::null_mut;

/// A call from Python: Python's lock is held, and the passed objects are alive.
#[derive(Clone, Copy)]
struct Call(&'static Api);

type Answer = Option<*mut Object>;

/// Produces the result of a call; null if an exception is set, as Python requires.
#[inline]
fn call(answer: impl FnOnce(Call) -> Answer) -> *mut Object {
    Api::get().and_then(|api| answer(Call(api))).unwrap_or(null_mut())
}

// SAFETY of all blocks here: a `Call` is only made in functions that Python calls, so this thread holds Python's lock,
// and the objects that it was given live as long as the call; every function has the type under which it was looked up.
impl Call {
    /// Converts an integer; `None` if an exception is set.
    #[inline]
    fn int(self, object: *mut Object) -> Option<u64> {
        // SAFETY: as above.
        let number = unsafe { (self.0.int)(object) };
        // SAFETY: as above.
        let has_failed = number == u64::MAX && unsafe { !(self.0.error)().is_null() };
        (!has_failed).then_some(number)
    }

    #[inline]
    fn short(self, object: *mut Object) -> Option<u32> {
        Some(u32::try_from(self.int(object)?).unwrap_or(u32::MAX))
    }

    fn float(self, object: *mut Object) -> Option<f64> {
        // SAFETY: as above.
        let number = unsafe { (self.0.float)(object) };
        // SAFETY: as above.
        let has_failed = number == -1.0 && unsafe { !(self.0.error)().is_null() };
        (!has_failed).then_some(number)
    }

    /// Returns the text of a string and its length; null if the object is no string, or has no UTF-8 form.
    fn text(self, object: *mut Object) -> (*const c_char, usize) {
        let mut length = 0;
        // SAFETY: as above, and `length` is valid for writing.
        let text = unsafe { (self.0.text)(object, &raw mut length) };
        if text.is_null() {
            // SAFETY: as above.
            unsafe { (self.0.clear_error)() };
        }
        (text, usize::try_from(length).unwrap_or(0))
    }

    #[inline]
    fn answer_int(self, number: u64) -> Answer {
        // SAFETY: as above.
        Some(unsafe { (self.0.int_of)(number) })
    }

    #[inline]
    fn answer_none(self) -> Answer {
        // SAFETY: as above; the reference that is taken is the caller's.
        unsafe { (self.0.keep)(self.0.none) };
        Some(self.0.none)
    }

    /// Returns the arguments, if there are exactly `N`.
    fn arguments<const N: usize>(self, first: *const *mut Object, count: isize) -> Option<[*mut Object; N]> {
        if count == N as isize {
            // SAFETY: Python passes an array of `count` objects, and `count` is `N`.
            return Some(std::array::from_fn(|at| unsafe { *first.add(at) }));
        }
        // SAFETY: as above; the exception type is never freed.
        unsafe {
            (self.0.set_error)(*self.0.type_error, c"wrong number of arguments: see the function's __doc__".as_ptr())
        };
        None
    }
}

pub(super) extern "C" fn open(_module: *mut Object, _none: *mut Object) -> *mut Object {
    // SAFETY: as for `Call`.
    call(|call| Some(unsafe { (call.0.signed_int_of)(exports::taskd_open().into()) }))
}

pub(super) extern "C" fn why(_module: *mut Object, _none: *mut Object) -> *mut Object {
    // SAFETY: as for `Call`.
    call(|call| Some(unsafe { (call.0.text_of)(exports::taskd_why()) }))
}

pub(super) extern "C" fn name(_module: *mut Object, text: *mut Object) -> *mut Object {
    call(|call| {
        let (text, length) = call.text(text);
        // SAFETY: the text has the given length, and lives as long as its string.
        call.answer_int(unsafe { exports::taskd_name(text, length) }.into())
    })
}

pub(super) extern "C" fn begin(_module: *mut Object, kind_and_name: *mut Object) -> *mut Object {
    call(|call| call.answer_int(exports::taskd_begin(call.int(kind_and_name)?)))
}

pub(super) extern "C" fn end(_module: *mut Object, range: *mut Object) -> *mut Object {
    call(|call| {
        exports::taskd_end(call.int(range)?);
        call.answer_none()
    })
}

pub(super) extern "C" fn begin_step(_module: *mut Object, number: *mut Object) -> *mut Object {
    call(|call| call.answer_int(exports::taskd_begin_step(call.int(number)?)))
}

pub(super) extern "C" fn begin_communication(
    _module: *mut Object,
    first: *const *mut Object,
    count: isize,
) -> *mut Object {
    call(|call| {
        let [name, op, data_type, group, peer, elements, bytes, sequence] = call.arguments(first, count)?;
        let what = RawCommunication {
            op: call.short(op)?,
            data_type: call.short(data_type)?,
            group: call.short(group)?,
            peer: call.short(peer)?,
            elements: call.int(elements)?,
            bytes: call.int(bytes)?,
            sequence: call.int(sequence)?,
        };
        // SAFETY: `what` is there.
        call.answer_int(unsafe { exports::taskd_begin_communication(call.short(name)?, &raw const what) })
    })
}

pub(super) extern "C" fn mark(_module: *mut Object, kind_and_name: *mut Object) -> *mut Object {
    call(|call| {
        exports::taskd_mark(call.int(kind_and_name)?);
        call.answer_none()
    })
}

pub(super) extern "C" fn counter(_module: *mut Object, first: *const *mut Object, count: isize) -> *mut Object {
    call(|call| {
        let [kind_and_name, value] = call.arguments(first, count)?;
        exports::taskd_counter(call.int(kind_and_name)?, call.float(value)?);
        call.answer_none()
    })
}

pub(super) extern "C" fn hooked(_module: *mut Object, kind: *mut Object) -> *mut Object {
    call(|call| {
        exports::taskd_hooked(call.short(kind)?);
        call.answer_none()
    })
}

pub(super) extern "C" fn except(_module: *mut Object, first: *const *mut Object, count: isize) -> *mut Object {
    call(|call| {
        let [kind, reason] = call.arguments(first, count)?;
        let (kind, (text, length)) = (call.short(kind)?, call.text(reason));
        // SAFETY: the text has the given length, and lives as long as its string.
        unsafe { exports::taskd_except(kind, text, length) };
        call.answer_none()
    })
}

pub(super) extern "C" fn is_on(_module: *mut Object, kind: *mut Object) -> *mut Object {
    call(|call| {
        let is_on = exports::is_on(call.short(kind)?);
        // SAFETY: as for `Call`.
        Some(unsafe { (call.0.bool_of)(is_on.into()) })
    })
}

pub(super) extern "C" fn switches_address(_module: *mut Object, _none: *mut Object) -> *mut Object {
    call(|call| call.answer_int(exports::taskd_switches().addr() as u64))
}

/// Produces the result of a function that uses objects; null if an exception is set.
#[inline]
fn with_objects(answer: impl FnOnce(Python) -> Outcome<*mut Object>) -> *mut Object {
    // Without some function of Python, the first of these functions returns False, and no other is called.
    call(|call| match Python::new() {
        Some(python) => answer(python).ok(),
        // SAFETY: as for `Call`.
        None => Some(unsafe { (call.0.bool_of)(0) }),
    })
}

/// Returns the arguments, if there are exactly `N`.
fn exactly<const N: usize>(python: Python, first: *const *mut Object, count: isize) -> Outcome<[*mut Object; N]> {
    call_arguments(first, count).ok_or_else(|| python.raise(c"wrong number of arguments: see the function's __doc__"))
}

fn call_arguments<const N: usize>(first: *const *mut Object, count: isize) -> Option<[*mut Object; N]> {
    // SAFETY: Python passes an array of `count` objects, and `count` is `N`.
    (count == N as isize).then(|| std::array::from_fn(|at| unsafe { *first.add(at) }))
}

pub(super) extern "C" fn prepare(_module: *mut Object, first: *const *mut Object, count: isize) -> *mut Object {
    with_objects(|python| {
        operations::prepare(python, exactly(python, first, count)?)?;
        Ok(python.bool_of(true))
    })
}

pub(super) extern "C" fn operation(_module: *mut Object, first: *const *mut Object, count: isize) -> *mut Object {
    with_objects(|python| operations::operation(python, exactly(python, first, count)?))
}

pub(super) extern "C" fn waited(_module: *mut Object, work: *mut Object) -> *mut Object {
    with_objects(|python| operations::waited(python, work).map(Ref::into_raw))
}

pub(super) extern "C" fn expect(_module: *mut Object, first: *const *mut Object, count: isize) -> *mut Object {
    with_objects(|python| {
        let [work, range, is_watched] = exactly(python, first, count)?;
        operations::expect(python, work, python.int(range)?, python.is_true(is_watched)?)?;
        Ok(python.none())
    })
}

pub(super) extern "C" fn is_open(_module: *mut Object, work: *mut Object) -> *mut Object {
    with_objects(|python| Ok(python.bool_of(open_works::has(work))))
}

pub(super) extern "C" fn finish(_module: *mut Object, work: *mut Object) -> *mut Object {
    with_objects(|python| {
        open_works::finish(usize::try_from(python.int(work)?).unwrap_or(0));
        Ok(python.none())
    })
}

pub(super) extern "C" fn sweep(_module: *mut Object, _none: *mut Object) -> *mut Object {
    with_objects(|python| operations::sweep(python).map(|()| python.none()))
}

pub(super) extern "C" fn forget_works(_module: *mut Object, _none: *mut Object) -> *mut Object {
    with_objects(|python| {
        open_works::forget();
        Ok(python.none())
    })
}

pub(super) extern "C" fn is_watching(_module: *mut Object, _none: *mut Object) -> *mut Object {
    with_objects(|python| {
        watched::is_watching();
        Ok(python.none())
    })
}

pub(super) extern "C" fn watch(_module: *mut Object, work: *mut Object) -> *mut Object {
    with_objects(|python| {
        watched::put(python.keep(work));
        Ok(python.none())
    })
}

/// Python may end the thread in it: see `Python::without_lock`.
pub(super) extern "C-unwind" fn next_watched(_module: *mut Object, _none: *mut Object) -> *mut Object {
    Python::new().map_or(null_mut(), |python| watched::take(python).into_raw())
}

pub(super) extern "C" fn is_none_watched(_module: *mut Object, _none: *mut Object) -> *mut Object {
    with_objects(|python| Ok(python.bool_of(watched::is_empty())))
}

pub(super) extern "C" fn stop_operations(_module: *mut Object, _none: *mut Object) -> *mut Object {
    with_objects(|python| {
        operations::stop();
        Ok(python.none())
    })
}
