//! Typed access to metadata; errors name the key.

use crate::error::GgufError;
use crate::value::{Array, Value};

/// A metadata entry.
#[derive(Debug, Clone, Copy)]
pub struct Field<'g, 'a> {
    /// The key.
    pub key: &'a str,
    /// The value.
    pub value: &'g Value<'a>,
}

impl<'g, 'a> Field<'g, 'a> {
    /// An integer of any width that fits.
    pub fn u32(self) -> Result<u32, GgufError> {
        self.int("an integer between 0 and 2^32 - 1")
    }

    /// An integer of any width that fits, or an array of the same one for every layer.
    pub fn same_u32(self) -> Result<u32, GgufError> {
        let Value::Array(array @ Array::Scalars(..)) = self.value else { return self.u32() };
        let mut all = array.scalars().map(|scalar| scalar.int::<u32>());
        let first = all.next().flatten();
        first
            .filter(|first| all.all(|other| other == Some(*first)))
            .ok_or_else(|| self.not("the same integer between 0 and 2^32 - 1 for every layer"))
    }

    /// An integer of any width that fits.
    pub fn u64(self) -> Result<u64, GgufError> {
        self.int("an integer between 0 and 2^64 - 1")
    }

    /// f32 or f64, which may be infinite or NaN.
    pub fn f64(self) -> Result<f64, GgufError> {
        match self.value {
            Value::Scalar(_, scalar) => scalar.float(),
            _ => None,
        }
        .ok_or_else(|| self.not("a floating-point number"))
    }

    /// f32, or f64 rounded.
    pub fn f32(self) -> Result<f32, GgufError> {
        self.f64().map(|value| value as f32)
    }

    /// A truth value.
    pub fn bool(self) -> Result<bool, GgufError> {
        match self.value {
            Value::Scalar(_, crate::Scalar::Bool(value)) => Ok(*value),
            _ => Err(self.not("true or false")),
        }
    }

    /// Text.
    pub fn str(self) -> Result<&'a str, GgufError> {
        match self.value {
            Value::Str(text) => Ok(text),
            _ => Err(self.not("a string")),
        }
    }

    /// An array of strings.
    pub fn strs(self) -> Result<&'g [&'a str], GgufError> {
        match self.value {
            Value::Array(Array::Strs(values)) => Ok(values),
            _ => Err(self.not("an array of strings")),
        }
    }

    /// An array of truth values.
    pub fn bools(self) -> Result<Vec<bool>, GgufError> {
        let bool = |scalar: crate::Scalar| match scalar {
            crate::Scalar::Bool(value) => Some(value),
            _ => None,
        };
        self.all("an array of truth values", bool)
    }

    /// An array of integers that fit.
    pub fn i32s(self) -> Result<Vec<i32>, GgufError> {
        self.all("an array of 32-bit integers", |scalar| scalar.int())
    }

    /// An array of integers that fit.
    pub fn u32s(self) -> Result<Vec<u32>, GgufError> {
        self.all("an array of integers between 0 and 2^32 - 1", |scalar| scalar.int())
    }

    /// An array of floating-point numbers.
    pub fn f32s(self) -> Result<Vec<f32>, GgufError> {
        let f32 = |scalar: crate::Scalar| scalar.float().map(|value| value as f32);
        self.all("an array of floating-point numbers", f32)
    }

    fn int<T: TryFrom<i128>>(self, want: &'static str) -> Result<T, GgufError> {
        match self.value {
            Value::Scalar(_, scalar) => scalar.int(),
            _ => None,
        }
        .ok_or_else(|| self.not(want))
    }

    fn all<T>(
        self,
        want: &'static str,
        convert: impl Fn(crate::Scalar) -> Option<T>,
    ) -> Result<Vec<T>, GgufError> {
        let Value::Array(array @ Array::Scalars(..)) = self.value else {
            return Err(self.not(want));
        };
        array.scalars().map(convert).collect::<Option<_>>().ok_or_else(|| self.not(want))
    }

    fn not(self, want: &'static str) -> GgufError {
        GgufError::Type { key: self.key.to_owned(), seen: self.value.to_string(), want }
    }
}
