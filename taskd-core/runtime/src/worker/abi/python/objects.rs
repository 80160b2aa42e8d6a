//! Python's functions for objects, as far as the hook of process groups uses them, and references that are released.
//!
//! All functions are in the stable ABI of every CPython from 3.8 on. If one is missing, the hook's Python path records.

use super::api::{Api, Object, Static, function, symbol};
use super::class::{ClassSpec, HEADER_BYTES};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

mod exception;
mod held;
mod lock;

/// A Python exception is set in this thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raised;

/// The result of a call into Python.
pub(super) type Outcome<T> = Result<T, Raised>;

type Unary<T> = unsafe extern "C" fn(*mut Object) -> T;
type Binary = unsafe extern "C" fn(*mut Object, *mut Object) -> *mut Object;
type At = unsafe extern "C" fn(*mut Object, isize) -> *mut Object;
type Error = unsafe extern "C" fn(*mut *mut Object, *mut *mut Object, *mut *mut Object);

#[derive(Clone, Copy, Debug)]
struct Functions {
    basic: &'static Api,
    release: Unary<()>,
    attribute: Binary,
    call: unsafe extern "C" fn(*mut Object, *mut Object, *mut Object) -> *mut Object,
    call_with: unsafe extern "C" fn(*mut Object, ...) -> *mut Object,
    next: Unary<*mut Object>,
    is_true: Unary<c_int>,
    tuple_size: Unary<isize>,
    tuple_item: At,
    list_size: Unary<isize>,
    list_item: At,
    dict_size: Unary<isize>,
    dict_item: Binary,
    interned: unsafe extern "C" fn(*const c_char) -> *mut Object,
    weak_reference: Binary,
    builtin: unsafe extern "C" fn(*mut c_void, *mut Object, *mut Object) -> *mut Object,
    class_of: unsafe extern "C" fn(*mut ClassSpec) -> *mut Object,
    instance: At,
    bound: Binary,
    slice: unsafe extern "C" fn(*mut Object, isize, isize) -> *mut Object,
    pointer: Unary<*mut c_void>,
    take_error: Error,
    complete_error: Error,
    put_error: unsafe extern "C" fn(*mut Object, *mut Object, *mut Object),
    list: *mut c_void,
    release_lock: unsafe extern "C" fn() -> *mut c_void,
    take_lock: unsafe extern "C-unwind" fn(*mut c_void),
}

// SAFETY: functions and addresses that are the same for all threads.
unsafe impl Send for Functions {}
// SAFETY: as above.
unsafe impl Sync for Functions {}

static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();

fn find_all() -> Option<Functions> {
    let basic = Api::load()?;
    // SAFETY: these functions have these types in every Python that `Api::load` accepts.
    unsafe {
        Some(Functions {
            basic,
            release: function(c"Py_DecRef")?,
            attribute: function(c"PyObject_GetAttr")?,
            call: function(c"PyObject_Call")?,
            call_with: function(c"PyObject_CallFunctionObjArgs")?,
            next: function(c"PyIter_Next")?,
            is_true: function(c"PyObject_IsTrue")?,
            tuple_size: function(c"PyTuple_Size")?,
            tuple_item: function(c"PyTuple_GetItem")?,
            list_size: function(c"PyList_Size")?,
            list_item: function(c"PyList_GetItem")?,
            dict_size: function(c"PyDict_Size")?,
            dict_item: function(c"PyDict_GetItem")?,
            interned: function(c"PyUnicode_InternFromString")?,
            weak_reference: function(c"PyWeakref_NewRef")?,
            builtin: function(c"PyCFunction_NewEx")?,
            class_of: function(c"PyType_FromSpec")?,
            instance: function(c"PyType_GenericAlloc")?,
            bound: function(c"PyMethod_New")?,
            slice: function(c"PyTuple_GetSlice")?,
            pointer: function(c"PyLong_AsVoidPtr")?,
            take_error: function(c"PyErr_Fetch")?,
            complete_error: function(c"PyErr_NormalizeException")?,
            put_error: function(c"PyErr_Restore")?,
            release_lock: function(c"PyEval_SaveThread")?,
            take_lock: function(c"PyEval_RestoreThread")?,
            list: Some(symbol(c"PyList_Type")).filter(|list| !list.is_null())?,
        })
    }
}

/// Python, in a thread that holds its lock: made only in functions that Python calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Python(&'static Functions);

/// A reference to an object, which keeps the object alive until it is dropped. It may be dropped only under Python's
/// lock.
#[derive(Debug)]
pub(super) struct Ref {
    object: *mut Object,
    python: Python,
}

impl Ref {
    /// Returns the object.
    #[inline]
    pub(super) const fn get(&self) -> *mut Object {
        self.object
    }

    /// Returns the object, whose reference is now the caller's.
    #[inline]
    pub(super) fn into_raw(self) -> *mut Object {
        let object = self.object;
        std::mem::forget(self);
        object
    }
}

impl Drop for Ref {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this reference is owned, and a `Python` proves that the functions exist; the lock is held, as for `Ref`.
        unsafe { (self.python.0.release)(self.object) }
    }
}

// SAFETY of all blocks here: a `Python` is made only in functions that Python calls, so this thread holds Python's lock;
// callers pass live objects, of the type that the function's name has; every function has the type of its lookup.
impl Python {
    /// Looks everything up, once; `None` if something is missing.
    #[inline]
    pub(super) fn new() -> Option<Python> {
        FUNCTIONS.get_or_init(find_all).as_ref().map(Python)
    }

    /// Takes over the reference that a function has returned; null means that an exception is set.
    #[inline]
    fn owned(self, object: *mut Object) -> Outcome<Ref> {
        if object.is_null() { Err(Raised) } else { Ok(Ref { object, python: self }) }
    }

    /// Takes over a reference to an object.
    #[inline]
    pub(super) const fn owning(self, object: *mut Object) -> Ref {
        Ref { object, python: self }
    }

    /// Returns another reference to an object.
    #[inline]
    pub(super) fn keep(self, object: *mut Object) -> Ref {
        // SAFETY: as above.
        unsafe { (self.0.basic.keep)(object) };
        Ref { object, python: self }
    }

    /// Returns the attribute with a name, which is a string object.
    #[inline]
    pub(super) fn attribute(self, object: *mut Object, name: *mut Object) -> Outcome<Ref> {
        // SAFETY: as above.
        self.owned(unsafe { (self.0.attribute)(object, name) })
    }

    /// Calls a function with a tuple of arguments, and a dictionary of named ones or null.
    #[inline]
    pub(super) fn call(self, what: *mut Object, arguments: *mut Object, named: *mut Object) -> Outcome<Ref> {
        // SAFETY: as above.
        self.owned(unsafe { (self.0.call)(what, arguments, named) })
    }

    /// Calls a function without an argument.
    #[inline]
    pub(super) fn call_none(self, what: *mut Object) -> Outcome<Ref> {
        // SAFETY: as above; a null pointer ends the arguments.
        self.owned(unsafe { (self.0.call_with)(what, null_mut::<Object>()) })
    }

    /// Calls a function with one argument.
    #[inline]
    pub(super) fn call_one(self, what: *mut Object, first: *mut Object) -> Outcome<Ref> {
        // SAFETY: as above; a null pointer ends the arguments.
        self.owned(unsafe { (self.0.call_with)(what, first, null_mut::<Object>()) })
    }

    /// Calls a function with two arguments.
    pub(super) fn call_two(self, what: *mut Object, first: *mut Object, second: *mut Object) -> Outcome<Ref> {
        // SAFETY: as above; a null pointer ends the arguments.
        self.owned(unsafe { (self.0.call_with)(what, first, second, null_mut::<Object>()) })
    }

    /// Returns the next integer of an iterator. An iterator that has ended is an exception like any other.
    #[inline]
    pub(super) fn next_int(self, iterator: *mut Object) -> Outcome<u64> {
        // SAFETY: as above.
        let next = unsafe { (self.0.next)(iterator) };
        if next.is_null() {
            return Err(self.raise(c"a counter has ended"));
        }
        self.int(self.owned(next)?.get())
    }

    /// Converts an integer.
    #[inline]
    pub(super) fn int(self, object: *mut Object) -> Outcome<u64> {
        // SAFETY: as above.
        let number = unsafe { (self.0.basic.int)(object) };
        // SAFETY: as above.
        let has_failed = number == u64::MAX && unsafe { !(self.0.basic.error)().is_null() };
        if has_failed { Err(Raised) } else { Ok(number) }
    }

    /// Converts an integer; one that is too large becomes the largest.
    #[inline]
    pub(super) fn short(self, object: *mut Object) -> Outcome<u32> {
        Ok(u32::try_from(self.int(object)?).unwrap_or(u32::MAX))
    }

    /// Converts an integer that is an address.
    pub(super) fn address(self, object: *mut Object) -> Outcome<*mut c_void> {
        // SAFETY: as above.
        let address = unsafe { (self.0.pointer)(object) };
        if address.is_null() { Err(self.raise(c"an address is missing")) } else { Ok(address) }
    }

    /// Returns true if an object counts as true.
    #[inline]
    pub(super) fn is_true(self, object: *mut Object) -> Outcome<bool> {
        // SAFETY: as above.
        match unsafe { (self.0.is_true)(object) } {
            0 => Ok(false),
            1.. => Ok(true),
            _ => Err(Raised),
        }
    }

    /// Returns true if an object is None.
    #[inline]
    pub(super) fn is_none(self, object: *mut Object) -> bool {
        object == self.0.basic.none
    }

    /// Returns another reference to None.
    pub(super) fn none(self) -> *mut Object {
        self.keep(self.0.basic.none).into_raw()
    }

    /// Returns True or False.
    pub(super) fn bool_of(self, is_true: bool) -> *mut Object {
        // SAFETY: as above.
        unsafe { (self.0.basic.bool_of)(is_true.into()) }
    }

    /// Returns true if the class of an object is this one, and not one derived from it.
    #[inline]
    pub(super) fn is_exactly(self, object: *mut Object, class: *mut Object) -> bool {
        // SAFETY: `PyObject` begins with the number of references and the class, which extension modules of the stable
        // ABI read as well; Pythons with another layout were refused by `Api::load`.
        unsafe { *object.cast::<*mut Object>().add(1) == class }
    }

    /// Returns the only element of a list that has one; None for everything else. The list owns the element.
    #[inline]
    pub(super) fn only_element(self, object: *mut Object) -> Option<*mut Object> {
        let is_list = self.is_exactly(object, self.0.list.cast());
        // SAFETY: as above, and the object is a list.
        (is_list && unsafe { (self.0.list_size)(object) } == 1).then(|| unsafe { (self.0.list_item)(object, 0) })
    }

    /// Returns the number of elements of a tuple.
    #[inline]
    pub(super) fn tuple_size(self, tuple: *mut Object) -> isize {
        // SAFETY: as above.
        unsafe { (self.0.tuple_size)(tuple) }
    }

    /// Returns an element of a tuple, which owns it.
    #[inline]
    pub(super) fn tuple_item(self, tuple: *mut Object, at: isize) -> Outcome<*mut Object> {
        // SAFETY: as above.
        let item = unsafe { (self.0.tuple_item)(tuple, at) };
        if item.is_null() { Err(Raised) } else { Ok(item) }
    }

    /// Returns the elements of a tuple, which owns them.
    pub(super) fn elements(self, tuple: *mut Object) -> Outcome<Vec<*mut Object>> {
        (0..self.tuple_size(tuple)).map(|at| self.tuple_item(tuple, at)).collect()
    }

    /// Returns true if a dictionary has no entries.
    #[inline]
    pub(super) fn is_empty_dict(self, dict: *mut Object) -> bool {
        // SAFETY: as above.
        unsafe { (self.0.dict_size)(dict) == 0 }
    }

    /// Returns the value of a key of a dictionary, which owns the value; None if there is none.
    #[inline]
    pub(super) fn value(self, dict: *mut Object, key: *mut Object) -> Option<*mut Object> {
        // SAFETY: as above; this function sets no exception.
        let value = unsafe { (self.0.dict_item)(dict, key) };
        (!value.is_null()).then_some(value)
    }

    /// Returns the text of a string and its length; null if the object is no string, or has no UTF-8 form.
    pub(super) fn text(self, object: *mut Object) -> (*const c_char, usize) {
        let mut length = 0;
        // SAFETY: as above, and `length` is valid for writing.
        let text = unsafe { (self.0.basic.text)(object, &raw mut length) };
        if text.is_null() {
            self.clear_error();
        }
        (text, usize::try_from(length).unwrap_or(0))
    }

    /// Returns a string object that Python keeps for good.
    pub(super) fn interned(self, text: &CStr) -> Outcome<*mut Object> {
        // SAFETY: as above.
        self.owned(unsafe { (self.0.interned)(text.as_ptr()) }).map(Ref::into_raw)
    }

    /// Returns a weak reference that calls a function when its object ends.
    #[inline]
    pub(super) fn weak_reference(self, object: *mut Object, dropped: *mut Object) -> Outcome<Ref> {
        // SAFETY: as above.
        self.owned(unsafe { (self.0.weak_reference)(object, dropped) })
    }

    /// Returns a function object for a definition, which is never freed. `first` is passed to every call.
    pub(super) fn builtin(self, definition: *mut super::api::Method, first: *mut Object) -> Outcome<Ref> {
        // SAFETY: as above, and the definition is laid out as Python's.
        self.owned(unsafe { (self.0.builtin)(definition.cast(), first, null_mut()) })
    }

    /// Returns a new class.
    pub(super) fn class_of(self, spec: &'static Static<ClassSpec>) -> Outcome<Ref> {
        // SAFETY: as above; the definition is never freed, and is laid out as Python's.
        self.owned(unsafe { (self.0.class_of)(spec.get()) })
    }

    /// Returns a new object of a class whose objects hold a pointer, and sets the pointer.
    pub(super) fn instance(self, class: *mut Object, pointer: *mut c_void) -> Outcome<Ref> {
        // SAFETY: as above.
        let object = self.owned(unsafe { (self.0.instance)(class, 0) })?;
        // SAFETY: the class has room for a pointer behind the part that is Python's.
        unsafe { *object.get().cast::<*mut c_void>().byte_add(HEADER_BYTES) = pointer };
        Ok(object)
    }

    /// Returns a function bound to an object, as a method.
    #[inline]
    pub(super) fn bound(self, function: *mut Object, object: *mut Object) -> Outcome<Ref> {
        // SAFETY: as above.
        self.owned(unsafe { (self.0.bound)(function, object) })
    }

    /// Returns a tuple without its first element.
    #[inline]
    pub(super) fn without_first(self, tuple: *mut Object) -> Outcome<Ref> {
        // SAFETY: as above; the end is limited to the tuple's.
        self.owned(unsafe { (self.0.slice)(tuple, 1, isize::MAX) })
    }

    /// Raises `TypeError`.
    pub(super) fn raise(self, message: &CStr) -> Raised {
        // SAFETY: as above; the exception type is never freed.
        unsafe { (self.0.basic.set_error)(*self.0.basic.type_error, message.as_ptr()) };
        Raised
    }

    /// Forgets the exception that is set, if one is.
    pub(super) fn clear_error(self) {
        // SAFETY: as above.
        unsafe { (self.0.basic.clear_error)() }
    }
}
