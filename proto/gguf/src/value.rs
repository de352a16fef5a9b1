//! Metadata values, borrowed from the file.

use crate::cursor::Cursor;
use crate::error::GgufError;

/// Arrays in arrays: more levels than any file in use has.
const ARRAY_DEPTH_MAX: u32 = 4;
/// Type and count of an array that holds nothing.
const ARRAY_HEADER_BYTES: u64 = 12;
/// Length of a string that holds nothing.
const STRING_HEADER_BYTES: u64 = 8;

/// Type of a scalar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScalarType {
    /// u8.
    U8,
    /// i8.
    I8,
    /// u16.
    U16,
    /// i16.
    I16,
    /// u32.
    U32,
    /// i32.
    I32,
    /// f32.
    F32,
    /// One byte, 0 or 1.
    Bool,
    /// u64.
    U64,
    /// i64.
    I64,
    /// f64.
    F64,
}

/// A number or a truth value, widened.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scalar {
    /// Any integer type.
    Int(i128),
    /// f32 or f64.
    Float(f64),
    /// Bool.
    Bool(bool),
}

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// A number or a truth value.
    Scalar(ScalarType, Scalar),
    /// Text.
    Str(&'a str),
    /// Values of one type.
    Array(Array<'a>),
}

/// Values of one type.
#[derive(Debug, Clone, PartialEq)]
pub enum Array<'a> {
    /// Numbers or truth values, as they lie in the file.
    Scalars(ScalarType, &'a [u8]),
    /// Texts.
    Strs(Vec<&'a str>),
    /// Arrays.
    Arrays(Vec<Array<'a>>),
}

/// What a type code of the file stands for.
enum Kind {
    Scalar(ScalarType),
    Str,
    Array,
}

impl ScalarType {
    /// Bytes of one in the file.
    pub const fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Reads one; `bytes` has exactly [`bytes`](Self::bytes) of them.
    fn read(self, bytes: &[u8]) -> Scalar {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let raw = u64::from_le_bytes(word);
        match self {
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => Scalar::Int(raw.into()),
            Self::I8 => Scalar::Int((raw as u8 as i8).into()),
            Self::I16 => Scalar::Int((raw as u16 as i16).into()),
            Self::I32 => Scalar::Int((raw as u32 as i32).into()),
            Self::I64 => Scalar::Int((raw as i64).into()),
            Self::F32 => Scalar::Float(f32::from_bits(raw as u32).into()),
            Self::F64 => Scalar::Float(f64::from_bits(raw)),
            Self::Bool => Scalar::Bool(raw == 1),
        }
    }
}

impl Scalar {
    pub(crate) fn int<T: TryFrom<i128>>(self) -> Option<T> {
        match self {
            Self::Int(value) => T::try_from(value).ok(),
            _ => None,
        }
    }

    pub(crate) fn float(self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(value),
            _ => None,
        }
    }
}

impl<'a> Array<'a> {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::Scalars(kind, bytes) => bytes.len() / kind.bytes(),
            Self::Strs(values) => values.len(),
            Self::Arrays(values) => values.len(),
        }
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The scalars; none if the array holds strings or arrays.
    pub fn scalars(&self) -> impl Iterator<Item = Scalar> + 'a {
        let (kind, bytes): (_, &'a [u8]) = match self {
            Self::Scalars(kind, bytes) => (*kind, *bytes),
            _ => (ScalarType::U8, &[]),
        };
        bytes.chunks_exact(kind.bytes()).map(move |bytes| kind.read(bytes))
    }
}

impl std::fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Scalar(_, Scalar::Int(value)) => write!(f, "{value}"),
            Self::Scalar(_, Scalar::Float(value)) => write!(f, "{value}"),
            Self::Scalar(_, Scalar::Bool(value)) => write!(f, "{value}"),
            Self::Str(text) => write!(f, "{:?}", text.chars().take(80).collect::<String>()),
            Self::Array(array) => write!(f, "an array of {}", array.len()),
        }
    }
}

impl<'a> Value<'a> {
    /// Reads a type code and the value after it; `key` is for errors.
    pub(crate) fn read(cursor: &mut Cursor<'a>, key: &str) -> Result<Self, GgufError> {
        Ok(match Kind::read(cursor, key)? {
            Kind::Scalar(kind) => {
                let bytes = scalars(cursor, kind, 1, key)?;
                Self::Scalar(kind, kind.read(bytes))
            }
            Kind::Str => Self::Str(cursor.string(key)?),
            Kind::Array => Self::Array(Array::read(cursor, key, ARRAY_DEPTH_MAX)?),
        })
    }
}

impl<'a> Array<'a> {
    fn read(cursor: &mut Cursor<'a>, key: &str, depth_left: u32) -> Result<Self, GgufError> {
        let offset = cursor.offset();
        if depth_left == 0 {
            let (what, bound) = (format!("array depth of {key}"), ARRAY_DEPTH_MAX.into());
            return Err(GgufError::Bound { offset, what, value: bound + 1, bound });
        }
        Ok(match Kind::read(cursor, key)? {
            Kind::Scalar(kind) => {
                let count = cursor.count(kind.bytes() as u64, key)?;
                Self::Scalars(kind, scalars(cursor, kind, count, key)?)
            }
            Kind::Str => {
                let count = cursor.count(STRING_HEADER_BYTES, key)?;
                Self::Strs((0..count).map(|_| cursor.string(key)).collect::<Result<_, _>>()?)
            }
            Kind::Array => {
                let count = cursor.count(ARRAY_HEADER_BYTES, key)?;
                let mut next = || Self::read(cursor, key, depth_left - 1);
                Self::Arrays((0..count).map(|_| next()).collect::<Result<_, _>>()?)
            }
        })
    }
}

impl Kind {
    fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self, GgufError> {
        let offset = cursor.offset();
        let kind = match cursor.u32(key)? {
            0 => ScalarType::U8,
            1 => ScalarType::I8,
            2 => ScalarType::U16,
            3 => ScalarType::I16,
            4 => ScalarType::U32,
            5 => ScalarType::I32,
            6 => ScalarType::F32,
            7 => ScalarType::Bool,
            8 => return Ok(Self::Str),
            9 => return Ok(Self::Array),
            10 => ScalarType::U64,
            11 => ScalarType::I64,
            12 => ScalarType::F64,
            code => {
                let what = format!("value type {code} of {key} is unknown");
                return Err(GgufError::Malformed { offset, what });
            }
        };
        Ok(Self::Scalar(kind))
    }
}

fn scalars<'a>(
    cursor: &mut Cursor<'a>,
    kind: ScalarType,
    count: u64,
    key: &str,
) -> Result<&'a [u8], GgufError> {
    let offset = cursor.offset();
    let bytes = cursor.take(count * kind.bytes() as u64, key)?;
    if kind == ScalarType::Bool
        && let Some(idx) = bytes.iter().position(|&byte| byte > 1)
    {
        let what = format!("bool {} of {key}: must be 0 or 1", bytes[idx]);
        return Err(GgufError::Malformed { offset: offset + idx as u64, what });
    }
    Ok(bytes)
}
