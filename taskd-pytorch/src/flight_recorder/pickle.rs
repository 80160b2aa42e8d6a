//! A reader of pickles that contain plain values only: protocols 2 to 5, no classes, functions or bytes.
//!
//! Format: `Lib/pickletools.py` of `CPython`. An opcode that could create an object or call a function is an error.

use super::value::{Id, Value, Values};
use super::{DumpError, VALUES_MAX};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Returns true if the bytes begin like a pickle of protocol 2 or later.
pub(super) fn is_pickle(bytes: &[u8]) -> bool {
    bytes.first() == Some(&PROTO)
}

const PROTO: u8 = 0x80;
/// Highest protocol that is read.
const PROTOCOL_MAX: u8 = 5;

/// Reads a pickle. Returns its values, and the number of the outermost one.
pub(super) fn read(bytes: &[u8]) -> Result<(Values, Id), DumpError> {
    let mut machine = Machine {
        bytes,
        at: 0,
        values: Values::default(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: BTreeMap::new(),
    };
    loop {
        let at = machine.at;
        if let Some(top) = machine.step().map_err(|fault| fault.at(at))? {
            return Ok((machine.values, top));
        }
    }
}

/// A fault in the opcode that is being read.
enum Fault {
    Why(String),
    Other(DumpError),
}

impl Fault {
    fn at(self, at: usize) -> DumpError {
        match self {
            Fault::Why(why) => DumpError::Syntax { at: at as u64, why },
            Fault::Other(error) => error,
        }
    }
}

impl From<DumpError> for Fault {
    fn from(error: DumpError) -> Fault {
        Fault::Other(error)
    }
}

fn fault<T>(why: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Why(why.into()))
}

/// The stack machine that a pickle is a program for.
struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Values,
    stack: Vec<Id>,
    /// Heights of the stack at the marks that are open.
    marks: Vec<usize>,
    memo: BTreeMap<u32, Id>,
}

impl Machine<'_> {
    /// Performs one opcode. Returns the outermost value at the end of the pickle.
    fn step(&mut self) -> Result<Option<Id>, Fault> {
        if self.stack.len() + self.marks.len() + self.memo.len() > VALUES_MAX {
            return Err(DumpError::TooLarge { what: "open values", limit: VALUES_MAX as u64 }.into());
        }
        let code = self.take::<1>()?[0];
        match code {
            PROTO => match self.take::<1>()?[0] {
                2..=PROTOCOL_MAX => {}
                version => return fault(format!("a pickle of protocol {version}")),
            },
            0x95 => drop(self.take::<8>()?), // frame: its length is not needed
            b'.' => return self.pop().map(Some),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.since_mark()?),
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'J' | b'K' | b'M' | b'G' | 0x8a | 0x8b => {
                let number = self.number(code)?;
                self.push(number)?;
            }
            b'X' | 0x8c | 0x8d => {
                let text = self.text(code)?;
                self.push(text)?;
            }
            b']' | b')' => self.push(Value::List(Vec::new()))?,
            b'}' => self.push(Value::Dict(Vec::new()))?,
            b'a' | b'e' | b's' | b'u' => self.fill(code)?,
            b't' | b'l' | b'd' | 0x85..=0x87 => self.gather(code)?,
            b'q' | b'r' | b'h' | b'j' | 0x94 => self.remember(code)?,
            other => return fault(format!("opcode {} creates more than a plain value", other.escape_ascii())),
        }
        Ok(None)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let taken = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<N>());
        let Some(taken) = taken else { return fault("the dump ends too early") };
        self.at += N;
        Ok(*taken)
    }

    fn slice(&mut self, length: u64) -> Result<&[u8], Fault> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let taken = usize::try_from(length).ok().and_then(|length| rest.get(..length));
        let Some(taken) = taken else { return fault("the dump ends too early") };
        self.at += taken.len();
        Ok(taken)
    }

    fn push(&mut self, value: Value) -> Result<(), Fault> {
        let id = self.values.add(value)?;
        self.stack.push(id);
        Ok(())
    }

    /// Removes the top of the stack. A value below the last mark is not reachable.
    fn pop(&mut self) -> Result<Id, Fault> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.len() > floor {
            true => self.stack.pop().map_or_else(|| fault("a value is missing"), Ok),
            false => fault("a value is missing"),
        }
    }

    fn top(&self) -> Result<Id, Fault> {
        self.stack.last().copied().map_or_else(|| fault("a value is missing"), Ok)
    }

    /// Removes the values since the last mark.
    fn since_mark(&mut self) -> Result<Vec<Id>, Fault> {
        let Some(mark) = self.marks.pop() else { return fault("a mark is missing") };
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn number(&mut self, code: u8) -> Result<Value, Fault> {
        Ok(match code {
            b'J' => Value::Int(i64::from(i32::from_le_bytes(self.take()?))),
            b'K' => Value::Int(i64::from(self.take::<1>()?[0])),
            b'M' => Value::Int(i64::from(u16::from_le_bytes(self.take()?))),
            b'G' => Value::Float(f64::from_be_bytes(self.take()?)),
            _ => {
                let length = match code {
                    0x8a => u64::from(self.take::<1>()?[0]),
                    _ => u64::from(u32::from_le_bytes(self.take()?)),
                };
                let bytes = self.slice(length)?;
                let fill = if bytes.last().is_some_and(|last| last & 0x80 != 0) { 0xff } else { 0 };
                let mut whole = [fill; 8];
                let Some(place) = whole.get_mut(..bytes.len()) else { return fault("a number of more than 64 bits") };
                place.copy_from_slice(bytes);
                Value::Int(i64::from_le_bytes(whole))
            }
        })
    }

    fn text(&mut self, code: u8) -> Result<Value, Fault> {
        let length = match code {
            0x8c => u64::from(self.take::<1>()?[0]),
            b'X' => u64::from(u32::from_le_bytes(self.take()?)),
            _ => u64::from_le_bytes(self.take()?),
        };
        let text: Arc<str> = String::from_utf8_lossy(self.slice(length)?).into();
        Ok(Value::Text(text))
    }

    /// Adds elements to the container below them.
    fn fill(&mut self, code: u8) -> Result<(), Fault> {
        let new = match code {
            b'a' => vec![self.pop()?],
            b's' => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.since_mark()?,
        };
        let container = self.top()?;
        match (self.values.get_mut(container), code) {
            (Some(Value::List(elements)), b'a' | b'e') => elements.extend(new),
            (Some(Value::Dict(pairs)), b's' | b'u') if new.len() % 2 == 0 => {
                pairs.extend(new.chunks_exact(2).map(|pair| (pair[0], pair[1])));
            }
            _ => return fault("elements for something that cannot hold them"),
        }
        Ok(())
    }

    /// Makes a tuple, list or dictionary of the elements on the stack.
    fn gather(&mut self, code: u8) -> Result<(), Fault> {
        let elements = match code {
            0x85..=0x87 => {
                let mut elements = Vec::new();
                for _ in 0..=(code - 0x85) {
                    elements.push(self.pop()?);
                }
                elements.reverse();
                elements
            }
            _ => self.since_mark()?,
        };
        if code != b'd' {
            return self.push(Value::List(elements));
        }
        if elements.len() % 2 != 0 {
            return fault("a name without a value");
        }
        self.push(Value::Dict(elements.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()))
    }

    /// Stores the top of the stack under a number, or pushes the value that is stored under one.
    fn remember(&mut self, code: u8) -> Result<(), Fault> {
        let number = match code {
            b'q' | b'h' => u32::from(self.take::<1>()?[0]),
            b'r' | b'j' => u32::from_le_bytes(self.take()?),
            _ => u32::try_from(self.memo.len()).unwrap_or(u32::MAX),
        };
        if matches!(code, b'h' | b'j') {
            let Some(value) = self.memo.get(&number) else { return fault("a value that was never stored") };
            self.stack.push(*value);
            return Ok(());
        }
        let top = self.top()?;
        self.memo.insert(number, top);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
