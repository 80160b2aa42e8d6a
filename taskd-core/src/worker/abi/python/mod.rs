//! The Python module `_taskd`, of which this library is the extension file: `ExtensionFileLoader("_taskd", path)` loads it.
//!
//! It makes no object of its own but the module, and keeps none.
//!
//! One file serves every CPython from 3.8 on, and programs without Python: nothing of Python's is linked, its functions are
//! looked up when the module is imported. All that is relied on is in the stable ABI (PEP 384), except that
//! `PyUnicode_AsUTF8AndSize` and the calling convention `METH_FASTCALL` came into it with 3.10, and were the same before. A build
//! of Python with other objects (free-threaded, or tracing references) is told that there is no such module.

mod api;
mod functions;

use api::{Api, Method, Module, ModuleDef, Object};
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// What a function takes: one argument, none, or any number in an array.
const ONE: i32 = 0x0008;
const NONE: i32 = 0x0004;
const ANY: i32 = 0x0080;
/// The version of the stable ABI that the definition of the module is laid out by.
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
    c"open" NONE functions::open, c"Begins to record, if this process is a rank: 1 it does, 0 it is not to, below 0 it cannot.";
    c"why" NONE functions::why, c"Why this process does not record, or an empty string.";
    c"name" ONE functions::name, c"The number of a name (a str), 0 where there is no room for another.";
    c"begin" ONE functions::begin, c"Begins a range of kind | name << 32; what is returned ends it, 0 where it is off.";
    c"begin_step" ONE functions::begin_step, c"Begins a training step by its number.";
    c"begin_communication" ANY functions::begin_communication,
        c"Begins a communication: name, op, data_type, group, peer, elements, bytes, sequence.";
    c"end" ONE functions::end, c"Ends a range, a step or a communication.";
    c"mark" ONE functions::mark, c"Records that something of kind | name << 32 happened.";
    c"counter" ANY functions::counter, c"Records a figure: kind | name << 32, and a float.";
    c"hooked" ONE functions::hooked, c"Says that this process has a hook for a kind.";
    c"except_" ANY functions::except, c"Says why a kind is not recorded though it is on; an empty str for nothing.";
    c"is_on" ONE functions::is_on, c"Whether a kind is recorded now.";
    c"switches_address" NONE functions::switches_address, c"The address of the word with a bit for each kind that is recorded.";
});

static MODULE: api::Static<ModuleDef> = api::Static::new(ModuleDef {
    base: Module { references: 1, kind: null_mut(), init: null(), index: 0, copy: null_mut() },
    name: c"_taskd".as_ptr(),
    doc: c"What a training process does, recorded into memory that outlives it. See taskd.h.".as_ptr(),
    size: -1,
    methods: METHODS.get().cast(),
    slots: null_mut(),
    traverse: null(),
    clear: null(),
    free: null(),
});

/// Called by the import of the module.
#[unsafe(no_mangle)]
pub extern "C" fn PyInit__taskd() -> *mut Object {
    match Api::load() {
        // SAFETY: the definition lives for ever, is laid out as Python's, and is Python's from now on.
        Some(api) => unsafe { (api.create_module)(MODULE.get(), ABI_VERSION) },
        None => null_mut(),
    }
}
