//! The class of the function objects that are methods of a group's class.

use super::api::{Object, Static};
use super::objects::{Outcome, Python, Ref};
use super::operations;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Size of the part of every object that is Python's: the number of references and the class.
pub(super) const HEADER_BYTES: usize = 16;

/// `PyType_Spec`.
#[repr(C)]
pub(super) struct ClassSpec {
    pub(super) name: *const c_char,
    pub(super) size: c_int,
    pub(super) item_size: c_int,
    pub(super) flags: c_uint,
    pub(super) slots: *mut ClassSlot,
}

/// `PyType_Slot`.
#[repr(C)]
pub(super) struct ClassSlot {
    pub(super) number: c_int,
    pub(super) function: *const c_void,
}

/// The class of the function objects of methods. Unlike Python's own builtin functions they are bound to the group by
/// which they are found, and pybind11 does not take them for C++ functions that override nothing.
static CLASS: AtomicPtr<Object> = AtomicPtr::new(null_mut());

static SPEC: Static<ClassSpec> = Static::new(ClassSpec {
    name: c"_taskd.operation".as_ptr(),
    size: 24, // with a pointer to an operation
    item_size: 0,
    flags: DEFAULT_FLAGS,
    slots: SLOTS.get().cast(),
});
const _: () = assert!(HEADER_BYTES + size_of::<*mut c_void>() == 24);
/// `Py_TPFLAGS_DEFAULT` of Python 3.8; later versions accept it.
const DEFAULT_FLAGS: u32 = 1 << 18;

static SLOTS: Static<[ClassSlot; 3]> = Static::new([
    ClassSlot { number: 50, function: operations::run as *const c_void }, // Py_tp_call
    ClassSlot { number: 54, function: bind as *const c_void },            // Py_tp_descr_get
    ClassSlot { number: 0, function: null() },
]);

/// Binds the function to a group. Looked up in the class, it remains as it is.
extern "C" fn bind(function: *mut Object, group: *mut Object, _class: *mut Object) -> *mut Object {
    let Some(python) = Python::new() else { return null_mut() };
    match group.is_null() {
        true => python.keep(function).into_raw(),
        false => python.bound(function, group).map_or(null_mut(), Ref::into_raw),
    }
}

/// Returns the class of methods, which is made once and never freed.
pub(super) fn of_methods(python: Python) -> Outcome<*mut Object> {
    let class = match CLASS.load(Ordering::Acquire) {
        known if known.is_null() => {
            let class = python.class_of(&SPEC)?.into_raw();
            CLASS.store(class, Ordering::Release);
            class
        }
        known => known,
    };
    Ok(class)
}
