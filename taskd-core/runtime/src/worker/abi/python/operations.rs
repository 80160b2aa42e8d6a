//! Operations of process groups, recorded without running Python code: what `record.py` and `wrapper.py` do for a call.
//!
//! Between two operations a program does so much else that every object and instruction is out of the processor's
//! caches. So this path touches little, and leaves all that is rare to the Python function of the method: named
//! arguments, calls that are only traced, and everything after a failure.
//!
//! A failure of the recording itself is reported once, and ends it; the call continues.

use super::super::exports::{self, RawCommunication};
use super::super::process::recorder;
use super::super::recorder::Kind;
use super::api::{Method, Object, Static};
use super::class::{self, HEADER_BYTES};
use super::gates::{Gate, is_any_closed};
use super::objects::{Outcome, Python, Raised, Ref};
use super::{open_works, watched};
use std::ffi::{c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

const NO_PEER: u32 = u32::MAX;
/// Calling convention of a function with one argument.
const ONE: i32 = 0x0008;

/// What all operations of the process share. All objects in it are kept for good.
struct Shared {
    gates: Vec<Gate>,
    /// Reports the exception that it receives, and ends the recording.
    fail: *mut Object,
    /// The framework's own `Work.wait`.
    wait: *mut Object,
    tensor: *mut Object,
    /// Method of a tensor that returns the number of its elements.
    elements: *mut Object,
    /// Types of elements: the object, its number and bytes.
    types: Vec<(*mut Object, u32, u64)>,
    /// Classes of options, and the position of the byte `asyncOp` in the C++ object that such an object of Python holds.
    options: Vec<(*mut Object, usize)>,
    dropped: *mut Object,
    names: Names,
}

/// Names of attributes.
struct Names {
    numbers: *mut Object,
    collectives: *mut Object,
    name: *mut Object,
    is_on_host: *mut Object,
    inner: *mut Object,
    data_type: *mut Object,
    is_async: *mut Object,
    is_completed: *mut Object,
    get_future: *mut Object,
    done: *mut Object,
}

/// How one method of a group is recorded.
struct Operation {
    /// The whole method in Python.
    slow: *mut Object,
    method: *mut Object,
    /// Its name in the recorder.
    text: *mut Object,
    number: AtomicU32,
    op: u32,
    /// Position of the tensors; None if there are none.
    tensors: Option<isize>,
    /// Returns type, elements and bytes of all arguments that are not a plain tensor.
    amount: *mut Object,
    /// Returns the root as a rank of the job; null if the method has none.
    peer: *mut Object,
    /// Returns true if the operation completes on the host, for a group of several backends.
    completes_on_host: *mut Object,
}

/// Number of latest operations whose tensors are kept alive, as in `keep_alive.py`.
const KEPT: usize = 4;
/// What is kept alive of them.
static KEPT_ALIVE: [AtomicPtr<Object>; KEPT] = [const { AtomicPtr::new(null_mut()) }; KEPT];
static KEPT_NEXT: AtomicUsize = AtomicUsize::new(0);

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(null_mut());
/// The recording has failed.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

fn shared() -> Option<&'static Shared> {
    // SAFETY: what is there was leaked by `prepare`.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }
}

/// Reads what all operations share: gates, fail, wait, watch, tensor class, its method for elements, types, options.
pub(super) fn prepare(python: Python, arguments: [*mut Object; 8]) -> Outcome<()> {
    let [gates, fail, wait, watch, tensor, elements, types, options] = arguments;
    let for_good = |object| python.keep(object).into_raw();
    let gates = python.elements(gates)?.into_iter().map(|gate| Gate::read(python, gate)).collect::<Outcome<_>>()?;
    let a_type = |tuple| {
        let [object, code, width] = [0, 1, 2].map(|at| python.tuple_item(tuple, at));
        Ok((for_good(object?), python.short(code?)?, python.int(width?)?))
    };
    let options_class = |tuple| {
        let [class, position] = [0, 1].map(|at| python.tuple_item(tuple, at));
        Ok((for_good(class?), usize::try_from(python.short(position?)?).unwrap_or(0)))
    };
    let names = Names {
        numbers: python.interned(c"_numbers")?,
        collectives: python.interned(c"collectives")?,
        name: python.interned(c"name")?,
        is_on_host: python.interned(c"is_on_host")?,
        inner: python.interned(c"_inner")?,
        data_type: python.interned(c"dtype")?,
        is_async: python.interned(c"asyncOp")?,
        is_completed: python.interned(c"is_completed")?,
        get_future: python.interned(c"get_future")?,
        done: python.interned(c"done")?,
    };
    let shared = Shared {
        gates,
        types: python.elements(types)?.into_iter().map(a_type).collect::<Outcome<_>>()?,
        options: python.elements(options)?.into_iter().map(options_class).collect::<Outcome<_>>()?,
        fail: for_good(fail),
        wait: for_good(wait),
        tensor: for_good(tensor),
        elements: for_good(elements),
        dropped: python.builtin(DROPPED.get(), null_mut())?.into_raw(),
        names,
    };
    watched::start_with(for_good(watch));
    SHARED.store(Box::into_raw(Box::new(shared)), Ordering::Release);
    Ok(())
}

/// Records nothing from now on.
pub(super) fn stop() {
    HAS_FAILED.store(true, Ordering::Relaxed);
}

/// Returns the function object of one method, to be put into the class of the groups.
pub(super) fn operation(python: Python, arguments: [*mut Object; 8]) -> Outcome<*mut Object> {
    let [slow, method, text, op, tensors, amount, peer, completes_on_host] = arguments;
    let for_good = |object| python.keep(object).into_raw();
    let operation = Operation {
        op: python.short(op)?,
        tensors: if python.is_none(tensors) { None } else { isize::try_from(python.int(tensors)?).ok() },
        slow: for_good(slow),
        method: for_good(method),
        text: for_good(text),
        number: AtomicU32::new(0),
        amount: for_good(amount),
        peer: if python.is_none(peer) { null_mut() } else { for_good(peer) },
        completes_on_host: for_good(completes_on_host),
    };
    let class = class::of_methods(python)?;
    Ok(python.instance(class, Box::into_raw(Box::new(operation)).cast())?.into_raw())
}

static DROPPED: Static<Method> = Static::new(Method {
    name: c"dropped".as_ptr(),
    function: dropped as *const c_void,
    flags: ONE,
    doc: null::<c_char>(),
});

extern "C" fn dropped(_none: *mut Object, reference: *mut Object) -> *mut Object {
    open_works::dropped(reference);
    Python::new().map_or(null_mut(), Python::none)
}

pub(super) extern "C" fn run(function: *mut Object, all: *mut Object, named: *mut Object) -> *mut Object {
    let (Some(python), Some(shared)) = (Python::new(), shared()) else { return null_mut() };
    // SAFETY: an object of this class holds the address of an operation, which is never freed; null if Python code made it.
    let operation = unsafe { (*function.byte_add(HEADER_BYTES).cast::<*const Operation>()).as_ref() };
    let Some(operation) = operation else {
        python.raise(c"the class is private");
        return null_mut();
    };
    run_operation(python, shared, operation, all, named).map_or(null_mut(), Ref::into_raw)
}

fn run_operation(
    python: Python,
    shared: &Shared,
    operation: &Operation,
    all: *mut Object,
    named: *mut Object,
) -> Outcome<Ref> {
    if python.tuple_size(all) < 1 {
        return Err(python.raise(c"the method needs a group"));
    }
    let (group, arguments) = (python.tuple_item(all, 0)?, python.without_first(all)?);
    let call = Call { python, shared, operation, group, arguments: arguments.get() };
    if call.is_common(named) {
        return call.run();
    }
    python.call(operation.slow, all, named)
}

/// One call of a method of a group.
struct Call<'a> {
    python: Python,
    shared: &'a Shared,
    operation: &'a Operation,
    group: *mut Object,
    /// A tuple.
    arguments: *mut Object,
}

impl Call<'_> {
    #[inline]
    fn is_common(&self, named: *mut Object) -> bool {
        !HAS_FAILED.load(Ordering::Relaxed)
            && (named.is_null() || self.python.is_empty_dict(named))
            && !is_any_closed(self.python, &self.shared.gates)
    }

    fn run(&self) -> Outcome<Ref> {
        let python = self.python;
        let mut is_on_host = true; // if that is unknown: then the tensors are kept for a moment without a need
        let range = self.begin(&mut is_on_host).unwrap_or_else(|raised| self.fail(raised));
        let inner = python.attribute(self.group, self.shared.names.inner);
        let method = inner.and_then(|inner| python.attribute(inner.get(), self.operation.method));
        let work =
            method.and_then(|method| python.call(method.get(), self.arguments, null_mut())).inspect_err(|_| {
                exports::taskd_end(range);
            })?;
        if is_on_host {
            self.keep_alive();
        }
        if range != 0 {
            self.end_with(&work, range, is_on_host).unwrap_or_else(|raised| _ = self.fail(raised));
        }
        Ok(work)
    }

    /// Keeps the tensors alive for a moment: see `keep_alive.py`.
    fn keep_alive(&self) {
        let python = self.python;
        // options are not kept: most calls have a list of tensors and options
        let is_short = self.operation.tensors == Some(0) && python.tuple_size(self.arguments) == 2;
        let tensors =
            if is_short { python.tuple_item(self.arguments, 0).unwrap_or(self.arguments) } else { self.arguments };
        let at = KEPT_NEXT.fetch_add(1, Ordering::Relaxed) % KEPT;
        let earlier = KEPT_ALIVE[at].swap(python.keep(tensors).into_raw(), Ordering::AcqRel);
        if !earlier.is_null() {
            drop(python.owning(earlier));
        }
    }

    /// Begins the range of the operation; 0 if nothing is recorded. The counter advances in any case.
    fn begin(&self, is_on_host: &mut bool) -> Outcome<u64> {
        let (python, names) = (self.python, &self.shared.names);
        let numbers = python.attribute(self.group, names.numbers)?;
        let counter = python.attribute(numbers.get(), names.collectives)?;
        let sequence = python.next_int(counter.get())?;
        *is_on_host = python.is_true(python.attribute(numbers.get(), names.is_on_host)?.get())?;
        sweep_with(python, names)?;
        if !recorder().is_some_and(|recorder| recorder.is_on(Kind::Communication)) {
            return Ok(0);
        }
        let (data_type, elements, bytes) = self.amount()?;
        let peer = match self.operation.peer {
            peer if peer.is_null() => NO_PEER,
            peer => python.short(python.call_two(peer, self.group, self.arguments)?.get())?,
        };
        let group = python.short(python.attribute(numbers.get(), names.name)?.get())?;
        let what = RawCommunication { op: self.operation.op, data_type, group, peer, elements, bytes, sequence };
        let name = self.name();
        // SAFETY: `what` is there.
        Ok(unsafe { exports::taskd_begin_communication(name, &raw const what) })
    }

    /// Returns the number of the operation's name, which is registered with the first record.
    #[inline]
    fn name(&self) -> u32 {
        match self.operation.number.load(Ordering::Relaxed) {
            0 => {
                let (text, length) = self.python.text(self.operation.text);
                // SAFETY: the text has the given length, and lives as long as its string, which is kept.
                let number = unsafe { exports::taskd_name(text, length) };
                self.operation.number.store(number, Ordering::Relaxed);
                number
            }
            number => number,
        }
    }

    /// Returns type, elements and bytes of the tensors.
    #[inline]
    fn amount(&self) -> Outcome<(u32, u64, u64)> {
        let python = self.python;
        let position = self.operation.tensors.filter(|at| python.tuple_size(self.arguments) > *at);
        if let Some(position) = position {
            let what = python.tuple_item(self.arguments, position)?;
            // kept: torch's functions release Python's lock, and the list may change meanwhile
            let what = python.keep(python.only_element(what).unwrap_or(what));
            if python.is_exactly(what.get(), self.shared.tensor) {
                let of = python.attribute(what.get(), self.shared.names.data_type)?;
                if let Some((_, code, width)) = self.shared.types.iter().find(|(known, ..)| *known == of.get()) {
                    let elements = python.int(python.call_one(self.shared.elements, what.get())?.get())?;
                    return Ok((*code, elements, elements.saturating_mul(*width)));
                }
            }
        }
        let amount = python.call_one(self.operation.amount, self.arguments)?;
        let [code, elements, bytes] = [0, 1, 2].map(|at| python.tuple_item(amount.get(), at));
        Ok((python.short(code?)?, python.int(elements?)?, python.int(bytes?)?))
    }

    /// Ends the range when its work completes. torch returns no work if it has waited itself, and for a call that is
    /// issued together with others later.
    fn end_with(&self, work: &Ref, range: u64, is_on_host: bool) -> Outcome<()> {
        let python = self.python;
        if python.is_none(work.get()) {
            exports::taskd_end(range);
            return Ok(());
        }
        let is_watched = self.returns_at_once()?
            && (is_on_host
                || python
                    .is_true(python.call_two(self.operation.completes_on_host, self.group, self.arguments)?.get())?);
        open_works::expect(python, work.get(), range, is_watched, self.shared.dropped)?;
        if is_watched { watched::watch(python, work.get()) } else { Ok(()) }
    }

    /// Returns true if the call returns before the operation completes, or if an older torch does not report this.
    #[inline]
    fn returns_at_once(&self) -> Outcome<bool> {
        let python = self.python;
        let count = python.tuple_size(self.arguments);
        if count <= 0 {
            return Ok(true);
        }
        let options = python.tuple_item(self.arguments, count - 1)?;
        let known = self.shared.options.iter().find(|(class, _)| python.is_exactly(options, *class));
        // torch's property takes up to ten microseconds where nothing of pybind11 is in the processor's caches
        if let Some(is_async) = known.and_then(|(_, position)| python.held_flag(options, *position)) {
            return Ok(is_async);
        }
        match python.attribute(options, self.shared.names.is_async) {
            Ok(is_async) => python.is_true(is_async.get()),
            Err(Raised) => {
                python.clear_error();
                Ok(true)
            }
        }
    }

    /// Reports the exception that is set, and ends the recording.
    fn fail(&self, _: Raised) -> u64 {
        stop();
        if let Some(error) = self.python.take_error().object()
            && self.python.call_one(self.shared.fail, error.get()).is_err()
        {
            self.python.clear_error();
        }
        0
    }
}

/// Calls the framework's `Work.wait` without further arguments, and ends the range of the work.
pub(super) fn waited(python: Python, work: *mut Object) -> Outcome<Ref> {
    let Some(shared) = shared() else { return Err(python.raise(c"nothing was prepared")) };
    let answer = python.call_one(shared.wait, work);
    if answer.is_ok() {
        open_works::finish(work.addr());
    } else if open_works::has(work) {
        let error = python.take_error();
        match answers(python, work, shared.names.is_completed) {
            Ok(true) => open_works::finish(work.addr()),
            Ok(false) => {}
            Err(Raised) => python.clear_error(),
        }
        error.put_back();
    }
    answer
}

/// Ends the range when the work completes or is dropped.
pub(super) fn expect(python: Python, work: *mut Object, range: u64, is_watched: bool) -> Outcome<()> {
    let Some(shared) = shared() else { return Err(python.raise(c"nothing was prepared")) };
    open_works::expect(python, work, range, is_watched, shared.dropped)?;
    if is_watched { watched::watch(python, work) } else { Ok(()) }
}

/// Ends the ranges of all watched works that have completed.
pub(super) fn sweep(python: Python) -> Outcome<()> {
    shared().map_or(Ok(()), |shared| sweep_with(python, &shared.names))
}

/// Ends the ranges of all watched works that have completed. gloo completes the future of a work, for which DDP waits,
/// before the work itself: the next operation may begin in between. The future of the latest work is enough, since a
/// group completes its works in their order.
fn sweep_with(python: Python, names: &Names) -> Outcome<()> {
    if !open_works::has_any() {
        return Ok(());
    }
    open_works::sweep(python, |work, is_latest| {
        let is_completed = answers(python, work, names.is_completed)?;
        if is_completed || !is_latest {
            return Ok(is_completed);
        }
        let future = python.attribute(work, names.get_future).and_then(|ask| python.call_none(ask.get()));
        let is_done = future.and_then(|future| answers(python, future.get(), names.done));
        is_done.or_else(|Raised| {
            python.clear_error(); // a work without a future
            Ok(false)
        })
    })
}

/// Calls a method without arguments that returns true or false.
fn answers(python: Python, object: *mut Object, method: *mut Object) -> Outcome<bool> {
    let method = python.attribute(object, method)?;
    python.is_true(python.call_none(method.get())?.get())
}
