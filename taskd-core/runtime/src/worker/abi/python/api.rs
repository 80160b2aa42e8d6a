//! Python's functions and structures, as far as this library uses them.
//!
//! This module looks functions up and calls none.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::sync::OnceLock;

/// A Python object (`PyObject` of Python's C API), whose content is private to Python.
#[repr(C)]
#[derive(Debug)]
pub struct Object {
    _opaque: [u8; 0],
}

/// `PyMethodDef`.
#[repr(C)]
pub(super) struct Method {
    pub(super) name: *const c_char,
    pub(super) function: *const c_void,
    pub(super) flags: c_int,
    pub(super) doc: *const c_char,
}

/// `PyModuleDef_Base`.
#[repr(C)]
pub(super) struct Module {
    pub(super) references: isize,
    pub(super) kind: *mut Object,
    pub(super) init: *const c_void,
    pub(super) index: isize,
    pub(super) copy: *mut Object,
}

/// `PyModuleDef`.
#[repr(C)]
pub(super) struct ModuleDef {
    pub(super) base: Module,
    pub(super) name: *const c_char,
    pub(super) doc: *const c_char,
    pub(super) size: isize,
    pub(super) methods: *mut Method,
    pub(super) slots: *mut c_void,
    pub(super) traverse: *const c_void,
    pub(super) clear: *const c_void,
    pub(super) free: *const c_void,
}

/// A value whose address Python receives, and which Python may change.
#[repr(transparent)]
pub(super) struct Static<T>(UnsafeCell<T>);

// SAFETY: what is in it is touched by Python alone, under its lock.
unsafe impl<T> Sync for Static<T> {}

impl<T> Static<T> {
    pub(super) const fn new(value: T) -> Static<T> {
        Static(UnsafeCell::new(value))
    }

    pub(super) const fn get(&self) -> *mut T {
        self.0.get()
    }
}

type Get<T> = unsafe extern "C" fn(*mut Object) -> T;
type Make<T> = unsafe extern "C" fn(T) -> *mut Object;

/// Python's functions. A thread that calls them must hold Python's lock, as every thread does that Python has called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Api {
    pub(super) create_module: unsafe extern "C" fn(*mut ModuleDef, c_int) -> *mut Object,
    pub(super) int_of: Make<u64>,
    pub(super) signed_int_of: Make<c_long>,
    pub(super) bool_of: Make<c_long>,
    pub(super) text_of: Make<*const c_char>,
    pub(super) int: Get<u64>,
    pub(super) float: Get<f64>,
    pub(super) text: unsafe extern "C" fn(*mut Object, *mut isize) -> *const c_char,
    pub(super) error: unsafe extern "C" fn() -> *mut Object,
    pub(super) clear_error: unsafe extern "C" fn(),
    pub(super) set_error: unsafe extern "C" fn(*mut Object, *const c_char),
    pub(super) keep: Get<()>,
    pub(super) none: *mut Object,
    /// Address of the exception `TypeError`.
    pub(super) type_error: *mut *mut Object,
}

// SAFETY: functions and addresses that are the same for all threads.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

static API: OnceLock<Option<Api>> = OnceLock::new();

impl Api {
    /// Looks everything up, once; `None` in a program without a supported Python.
    pub(super) fn load() -> Option<&'static Api> {
        API.get_or_init(find_all).as_ref()
    }

    /// Returns what was looked up.
    #[inline]
    pub(super) fn get() -> Option<&'static Api> {
        API.get()?.as_ref()
    }
}

fn find_all() -> Option<Api> {
    let is_there = |name: &CStr| !symbol(name).is_null();
    let (is_new_enough, is_free_threaded) = (is_there(c"PyVectorcall_Call"), is_there(c"PyUnstable_Module_SetGIL"));
    if !is_new_enough || is_free_threaded {
        return None;
    }
    // SAFETY: these functions have had these types since Python 3.8, and will have them as long as there is a stable ABI.
    unsafe {
        Some(Api {
            create_module: function(c"PyModule_Create2")?,
            int_of: function(c"PyLong_FromUnsignedLongLong")?,
            signed_int_of: function(c"PyLong_FromLong")?,
            bool_of: function(c"PyBool_FromLong")?,
            text_of: function(c"PyUnicode_FromString")?,
            int: function(c"PyLong_AsUnsignedLongLong")?,
            float: function(c"PyFloat_AsDouble")?,
            text: function(c"PyUnicode_AsUTF8AndSize")?,
            error: function(c"PyErr_Occurred")?,
            clear_error: function(c"PyErr_Clear")?,
            set_error: function(c"PyErr_SetString")?,
            keep: function(c"Py_IncRef")?,
            none: Some(symbol(c"_Py_NoneStruct").cast()).filter(|none: &*mut Object| !none.is_null())?,
            type_error: Some(symbol(c"PyExc_TypeError").cast()).filter(|at: &*mut *mut Object| !at.is_null())?,
        })
    }
}

/// Looks up a function of the program or of a library that it is linked with.
///
/// # Safety
/// `F` must be the type of the function of this name.
pub(super) unsafe fn function<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let address = symbol(name);
    // SAFETY: an address that is not null is that of a function of this type, as the caller has promised.
    (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
}

/// Returns the address of a symbol of the program or of a library that it is linked with; null if there is none.
pub(super) fn symbol(name: &CStr) -> *mut c_void {
    unsafe extern "C" {
        fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    }
    const WHOLE_PROGRAM: *mut c_void = std::ptr::null_mut();
    // SAFETY: `name` is a C string; the lookup runs no code of the program's.
    unsafe { dlsym(WHOLE_PROGRAM, name.as_ptr()) }
}
