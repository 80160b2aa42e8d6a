//! The Python module `_taskd`, of which this library is the extension file: `ExtensionFileLoader("_taskd", path)` loads it.
//!
//! It creates no object except the module, and keeps none.
//!
//! One file serves every CPython from 3.8 on, and programs without Python: it does not link to Python, whose functions
//! are looked up when the module is imported. All that is used is in the stable ABI (PEP 384), except that
//! `PyUnicode_AsUTF8AndSize` and the calling convention `METH_FASTCALL` joined it with 3.10, and were the same before.
//! In a Python build with other object layouts (free-threaded, or tracing references) the import fails as if there were
//! no such module.

mod api;
mod functions;

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

static METHODS: api::Static<[Method; 14]> = api::Static::new(methods! {
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
