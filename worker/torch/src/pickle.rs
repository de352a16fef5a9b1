//! The machine that reads a pickle. It knows the instructions that `torch.save` writes for a
//! dictionary of tensors, in any of the protocols 2 to 5, and makes nothing but a list of them.
//!
//! Values are copied as they are or stand for a place in a list, so nothing recurses, however deep
//! they are inside one another, and what is named twice is there once.

mod op;
mod tensors;

use crate::cursor::Cursor;
use crate::dtype::Dtype;
use crate::error::TorchError;
use crate::globals::Global;

/// Some 150 bytes for each tensor.
const PICKLE_BYTES_MAX: usize = 32 << 20;
/// Things made, and places where they are remembered: some dozen for each tensor.
const OBJECTS_MAX: usize = 1 << 22;
/// Python writes the entries of a dictionary a thousand at a time.
const STACK_MAX: usize = 1 << 16;
/// Collections under way inside one another.
const MARKS_MAX: usize = 64;
/// What a pickle says of a tensor, unchecked.
#[derive(Debug, Clone)]
pub(crate) struct Rebuilt<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    pub(crate) storage: Storage<'a>,
    /// In elements.
    pub(crate) offset: i64,
    pub(crate) shape: Vec<i64>,
    /// In elements.
    pub(crate) strides: Vec<i64>,
}

/// An entry of the archive: `data/` and its key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Storage<'a> {
    pub(crate) key: &'a str,
    /// `None`: of bytes.
    pub(crate) dtype: Option<Dtype>,
    pub(crate) elements: i64,
}

#[derive(Debug, Clone, Copy)]
enum Value<'a> {
    /// None, true or false: nothing asks which.
    Plain,
    Int(i64),
    Text(&'a str),
    Global(Global),
    Tuple(Tuple),
    /// Its place in `dicts`.
    Dict(usize),
    /// Its place in `storages`.
    Storage(usize),
    /// Its place in `tensors`.
    Tensor(usize),
}

/// So many of `items`, from there on.
#[derive(Debug, Clone, Copy)]
struct Tuple {
    at: usize,
    count: usize,
}

#[derive(Debug, Clone, Copy)]
struct Made {
    dtype: Dtype,
    storage: usize,
    offset: i64,
    shape: Tuple,
    strides: Tuple,
}

struct Machine<'a> {
    cursor: Cursor<'a>,
    /// Where the instruction begins that is done.
    offset: u64,
    stack: Vec<Value<'a>>,
    marks: Vec<usize>,
    memo: Vec<Value<'a>>,
    items: Vec<Value<'a>>,
    dicts: Vec<Vec<(Value<'a>, Value<'a>)>>,
    storages: Vec<Storage<'a>>,
    tensors: Vec<Made>,
    objects: usize,
}

/// The tensors of a dictionary, in its order.
///
/// # Errors
/// The first instruction or name that is none of those that are known, or out of place.
pub(crate) fn read(pickle: &[u8]) -> Result<Vec<Rebuilt<'_>>, TorchError> {
    let mut machine = Machine {
        cursor: Cursor::new(pickle),
        offset: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        items: Vec::new(),
        dicts: Vec::new(),
        storages: Vec::new(),
        tensors: Vec::new(),
        objects: 0,
    };
    if pickle.len() > PICKLE_BYTES_MAX {
        let what = format!("{} bytes: must be at most {PICKLE_BYTES_MAX}", pickle.len());
        return Err(machine.refused(what));
    }
    while machine.step()? {}
    machine.finish()
}

impl<'a> Machine<'a> {
    fn refused(&self, what: impl Into<String>) -> TorchError {
        TorchError::Pickle { offset: self.offset, what: what.into() }
    }

    /// Does one instruction; false at the end.
    fn step(&mut self) -> Result<bool, TorchError> {
        self.offset = self.cursor.offset();
        match self.cursor.u8()? {
            op::STOP => return Ok(false),
            op::PROTO => self.proto()?,
            op::FRAME => _ = self.cursor.u64()?,
            op::NONE | op::NEWTRUE | op::NEWFALSE => self.push(Value::Plain)?,
            code @ (op::BININT | op::BININT1 | op::BININT2 | op::LONG1) => self.int(code)?,
            code @ (op::BINUNICODE | op::SHORT_BINUNICODE | op::BINUNICODE8) => self.text(code)?,
            op::GLOBAL => {
                let (module, name) = (self.cursor.line()?, self.cursor.line()?);
                self.global(module, name)?;
            }
            op::STACK_GLOBAL => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Value::Text(module), Value::Text(name)) = (module, name) else {
                    return Err(self.refused("names something by what is no text"));
                };
                self.global(module, name)?;
            }
            op::BINPUT => self.put(|cursor| cursor.u8().map(usize::from))?,
            op::LONG_BINPUT => self.put(|cursor| cursor.u32().map(|idx| idx as usize))?,
            op::MEMOIZE => {
                let next = self.memo.len();
                self.put(|_| Ok(next))?;
            }
            op::BINGET => self.get(|cursor| cursor.u8().map(usize::from))?,
            op::LONG_BINGET => self.get(|cursor| cursor.u32().map(|idx| idx as usize))?,
            op::MARK => self.mark()?,
            op::EMPTY_TUPLE => self.tuple(0)?,
            op::TUPLE1 => self.tuple(1)?,
            op::TUPLE2 => self.tuple(2)?,
            op::TUPLE3 => self.tuple(3)?,
            op::TUPLE => {
                let count = self.since_mark()?;
                self.tuple(count)?;
            }
            op::EMPTY_DICT => self.dict()?,
            op::SETITEM => self.set(2)?,
            op::SETITEMS => {
                let count = self.since_mark()?;
                self.set(count)?;
            }
            op::BINPERSID => self.storage()?,
            op::REDUCE => self.reduce()?,
            op::BUILD => self.build()?,
            other => {
                let what = format!("instruction {other:#04x}, which no list of tensors needs");
                return Err(self.refused(what));
            }
        }
        Ok(true)
    }

    fn proto(&mut self) -> Result<(), TorchError> {
        match self.cursor.u8()? {
            2..=5 => Ok(()),
            other => Err(self.refused(format!("protocol {other}: must be from 2 to 5"))),
        }
    }

    fn int(&mut self, code: u8) -> Result<(), TorchError> {
        let int = match code {
            op::BININT1 => self.cursor.u8()?.into(),
            op::BININT2 => self.cursor.u16()?.into(),
            op::LONG1 => self.cursor.long()?,
            _ => self.cursor.u32()?.cast_signed().into(),
        };
        self.push(Value::Int(int))
    }

    fn text(&mut self, code: u8) -> Result<(), TorchError> {
        let bytes = match code {
            op::SHORT_BINUNICODE => self.cursor.u8()?.into(),
            op::BINUNICODE8 => self.cursor.u64()?,
            _ => self.cursor.u32()?.into(),
        };
        let text = self.cursor.text(bytes)?;
        self.push(Value::Text(text))
    }

    fn global(&mut self, module: &str, name: &str) -> Result<(), TorchError> {
        let Some(global) = Global::find(module, name) else {
            let called = format!("{module}.{name}");
            return Err(self.refused(format!(
                "names {called:?}, which no tensor is made of, and nothing is run: convert the \
                 file to safetensors if you trust it"
            )));
        };
        self.push(Value::Global(global))
    }

    fn push(&mut self, value: Value<'a>) -> Result<(), TorchError> {
        if self.stack.len() == STACK_MAX {
            return Err(self.refused(format!("a stack of more than {STACK_MAX} values")));
        }
        self.stack.push(value);
        Ok(())
    }

    /// The last value behind the last mark.
    fn pop(&mut self) -> Result<Value<'a>, TorchError> {
        let own = self.marks.last().copied().unwrap_or(0);
        let value = if self.stack.len() > own { self.stack.pop() } else { None };
        value.ok_or_else(|| self.refused("takes a value where there is none"))
    }

    fn mark(&mut self) -> Result<(), TorchError> {
        if self.marks.len() == MARKS_MAX {
            return Err(self.refused(format!("more than {MARKS_MAX} values inside one another")));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// How many values stand behind the last mark, which goes.
    fn since_mark(&mut self) -> Result<usize, TorchError> {
        let mark = self.marks.pop().ok_or_else(|| self.refused("ends what has not begun"))?;
        Ok(self.stack.len() - mark)
    }

    fn count(&mut self, objects: usize) -> Result<(), TorchError> {
        self.objects += objects;
        if self.objects > OBJECTS_MAX {
            return Err(self.refused(format!("makes more than {OBJECTS_MAX} values")));
        }
        Ok(())
    }

    /// Remembers the last value at the place that is read, the next one or an older one.
    fn put(
        &mut self,
        place: impl FnOnce(&mut Cursor<'a>) -> Result<usize, TorchError>,
    ) -> Result<(), TorchError> {
        let idx = place(&mut self.cursor)?;
        let value = self.pop()?;
        self.push(value)?;
        match idx.checked_sub(self.memo.len()) {
            None => self.memo[idx] = value,
            Some(0) => {
                self.count(1)?;
                self.memo.push(value);
            }
            Some(_) => {
                let next = self.memo.len();
                return Err(self.refused(format!("remembers value {idx}: must be at most {next}")));
            }
        }
        Ok(())
    }

    fn get(
        &mut self,
        place: impl FnOnce(&mut Cursor<'a>) -> Result<usize, TorchError>,
    ) -> Result<(), TorchError> {
        let idx = place(&mut self.cursor)?;
        let Some(value) = self.memo.get(idx).copied() else {
            let all = self.memo.len();
            return Err(self.refused(format!("takes value {idx} of {all} that it remembers")));
        };
        self.push(value)
    }

    /// Makes a tuple of the last values.
    fn tuple(&mut self, count: usize) -> Result<(), TorchError> {
        self.count(count)?;
        let at = self.items.len();
        for _ in 0..count {
            let value = self.pop()?;
            self.items.push(value);
        }
        self.items[at..].reverse();
        self.push(Value::Tuple(Tuple { at, count }))
    }

    fn dict(&mut self) -> Result<(), TorchError> {
        self.count(1)?;
        self.dicts.push(Vec::new());
        self.push(Value::Dict(self.dicts.len() - 1))
    }

    /// Puts the last values, a key and what it has in turn, into the dictionary before them.
    fn set(&mut self, count: usize) -> Result<(), TorchError> {
        self.count(count)?;
        let mut pairs = Vec::new();
        for _ in 0..count / 2 {
            let (value, key) = (self.pop()?, self.pop()?);
            pairs.push((key, value));
        }
        match self.pop()? {
            Value::Dict(idx) if count.is_multiple_of(2) => {
                self.dicts[idx].extend(pairs.into_iter().rev());
                self.push(Value::Dict(idx))
            }
            _ => Err(self.refused("puts entries into what is no dictionary, or half of one")),
        }
    }

    /// What somebody has noted of a dictionary: versions of modules. Nothing asks for it.
    fn build(&mut self) -> Result<(), TorchError> {
        let (_noted, of) = (self.pop()?, self.pop()?);
        match of {
            Value::Dict(_) => self.push(of),
            _ => Err(self.refused("sets what a value has that is no dictionary")),
        }
    }
}
