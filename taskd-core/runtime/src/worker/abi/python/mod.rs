//! The Python module `_taskd`, of which this library is the extension file: `ExtensionFileLoader("_taskd", path)` loads it.
//!
//! Besides the functions of `taskd.h` it has those that record the operations of process groups without running Python
//! code (`operations`): a collective that is recorded in Python costs about three times as much. They know no framework:
//! its hook passes all names and objects.
//!
//! One file serves every CPython from 3.8 on, and programs without Python: it does not link to Python, whose functions
//! are looked up when the module is imported. All that is used is in the stable ABI (PEP 384), except `PyMethod_New`, and that
//! `PyUnicode_AsUTF8AndSize` and the calling convention `METH_FASTCALL` joined it with 3.10, and were the same before.
//! `prepare_operations` returns false if a function that only operations need is missing.
//! In a Python build with other object layouts (free-threaded, or tracing references) the import fails as if there were
//! no such module.

mod api;
mod class;
mod functions;
mod gates;
mod objects;
mod open_works;
mod operations;
mod watched;

use api::{Api, Method, Module, ModuleDef, Object};
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// Calling conventions of the functions: one argument, none, or any number in an array.
const ONE: i32 = 0x0008;
const NONE: i32 = 0x0004;
const ANY: i32 = 0x0080;
/// Version of the stable ABI whose layout the module definition has.
const ABI_VERSION: i32 = 3;

macro_rules! methods {
    ($($name:literal $takes:ident $function:path, $doc:literal;)*) => {
        [
            $(Method {
                name: $name.as_ptr(),
                function: $function as *const c_void,
                flags: $takes,
                doc: $doc.as_ptr(),
            },)*
            Method { name: null(), function: null(), flags: 0, doc: null() },
        ]
    };
}

static METHODS: api::Static<[Method; 27]> = api::Static::new(methods! {
    c"open" NONE functions::open, c"Begins to record, if this process is a rank. Returns 1; 0 if it must not, below 0 if it cannot.";
    c"why" NONE functions::why, c"Returns why this process does not record, or an empty string.";
    c"name" ONE functions::name, c"Returns the number of a name (a str), or 0 if there is no room.";
    c"begin" ONE functions::begin, c"Begins a range of kind | name << 32. Returns the argument of end(), or 0 if the kind is off.";
    c"begin_step" ONE functions::begin_step, c"Begins a training step by its number.";
    c"begin_communication" ANY functions::begin_communication,
        c"Begins a communication: name, op, data_type, group, peer, elements, bytes, sequence.";
    c"end" ONE functions::end, c"Ends a range, a step or a communication.";
    c"mark" ONE functions::mark, c"Records an event of kind | name << 32.";
    c"counter" ANY functions::counter, c"Records a figure: kind | name << 32, and a float.";
    c"hooked" ONE functions::hooked, c"Declares that this process has a hook for a kind.";
    c"except_" ANY functions::except, c"Declares why a kind is not recorded although it is on; an empty str withdraws it.";
    c"is_on" ONE functions::is_on, c"Returns true if a kind is recorded now.";
    c"prepare_operations" ANY functions::prepare,
        c"Prepares operation(): gates, fail, wait, watch, tensor class, its numel, types, options. Returns false if this Python lacks a function. A gate is (0, function), (form, address) of a C function that returns an integer (1), a pointer to a pointer (2) or to two (3), or of a word (4), or (5, dict, key). An option is a class and the position of the byte asyncOp in its C++ object.";
    c"operation" ANY functions::operation,
        c"Returns a method of a group class: slow (the same in Python), method, name, op, position of the tensors, amount, peer, completes_on_host.";
    c"waited" ONE functions::waited, c"Waits for a work, and ends its range.";
    c"expect" ANY functions::expect, c"Ends a range when its work completes: work, range, whether it is watched.";
    c"is_open" ONE functions::is_open, c"Returns true if the range of a work is open.";
    c"finish" ONE functions::finish, c"Ends the range of the work with this id.";
    c"sweep" NONE functions::sweep, c"Ends the ranges of all watched works that have completed.";
    c"forget_works" NONE functions::forget_works, c"Forgets the open ranges, in a forked process.";
    c"is_watching" NONE functions::is_watching, c"Declares that a thread takes the works to be watched.";
    c"watch" ONE functions::watch, c"Passes a work to the thread that takes them.";
    c"next_watched" NONE functions::next_watched, c"Takes the oldest work to be watched, for which it waits.";
    c"is_none_watched" NONE functions::is_none_watched, c"Returns true if no work to be watched waits to be taken.";
    c"stop_operations" NONE functions::stop_operations, c"Records no further operation.";
    c"switches_address" NONE functions::switches_address, c"Returns the address of the word with a bit for each recorded kind.";
});

static MODULE: api::Static<ModuleDef> = api::Static::new(ModuleDef {
    base: Module { references: 1, kind: null_mut(), init: null(), index: 0, copy: null_mut() },
    name: c"_taskd".as_ptr(),
    doc: c"Records the activity of a training process in memory that outlives it. See taskd.h.".as_ptr(),
    size: -1,
    methods: METHODS.get().cast(),
    slots: null_mut(),
    traverse: null(),
    clear: null(),
    free: null(),
});

/// Initialises the Python module `_taskd`. Python calls this function when the module is imported.
#[unsafe(no_mangle)]
pub extern "C" fn PyInit__taskd() -> *mut Object {
    match Api::load() {
        // SAFETY: the definition is never freed, is laid out as Python's, and is Python's from now on.
        Some(api) => unsafe { (api.create_module)(MODULE.get(), ABI_VERSION) },
        None => null_mut(),
    }
}
