//! A JSON object taken apart field by field, so that every error names its field.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::error::ApiError;

/// What asks for nothing is short; a long value, which may take many times its text in memory, is
/// not parsed to see that it does.
const HARMLESS_BYTES_MAX: usize = 1024;

/// The fields of an object that have not been looked at yet.
pub(super) struct Fields<'a> {
    /// What stands before a field's name in errors.
    path: &'static str,
    fields: BTreeMap<String, &'a RawValue>,
}

impl<'a> Fields<'a> {
    /// # Errors
    /// A body that is not one JSON object.
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        // As Python's json reads them, a mark of the byte order says nothing.
        let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        let fields = serde_json::from_slice(body).map_err(|error| {
            let message = format!("the body is not a JSON object: {error}");
            ApiError::new(StatusCode::BAD_REQUEST, message)
        })?;
        Ok(Self { path: "", fields })
    }

    /// The fields of the object in field `name`; none when it is absent.
    pub(super) fn object(&mut self, name: &'static str) -> Result<Self, ApiError> {
        let fields = self.take(name)?.unwrap_or_default();
        Ok(Self { path: name, fields })
    }

    /// The value of `name`; `None` when it is absent or null.
    pub(super) fn take<T: Deserialize<'a>>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        let Some(raw) = self.fields.remove(name) else { return Ok(None) };
        let number = || whole(serde_json::from_str(raw.get()).ok()?);
        let taken = serde_json::from_str(raw.get()).or_else(|error| match number() {
            Some(number) => Option::deserialize(Value::from(number)).map_err(|_| error),
            None => Err(error),
        });
        taken.map_err(|error| {
            // Where it stands within the value, which is no place in the body.
            let message = error.to_string();
            let what = message.rsplit_once(" at line ").map_or(&*message, |(what, _)| what);
            ApiError::field(&self.full(name), what)
        })
    }

    pub(super) fn take_or<T: Deserialize<'a>>(
        &mut self,
        name: &str,
        default: T,
    ) -> Result<T, ApiError> {
        Ok(self.take(name)?.unwrap_or(default))
    }

    /// The text of `name`, not yet parsed.
    pub(super) fn raw(&mut self, name: &str) -> Option<&'a str> {
        self.fields.remove(name).map(RawValue::get).filter(|raw| *raw != "null")
    }

    /// Refuses `name` unless it is absent, null or `harmless`.
    pub(super) fn refuse(
        &mut self,
        name: &str,
        harmless: fn(&Value) -> bool,
    ) -> Result<(), ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(()) };
        let is_short = raw.len() <= HARMLESS_BYTES_MAX;
        let value = is_short.then(|| serde_json::from_str::<Value>(raw).ok()).flatten();
        match value.is_some_and(|value| harmless(&value)) {
            true => Ok(()),
            false => Err(ApiError::field(&self.full(name), "is not supported")),
        }
    }

    /// Passes over `name`, whatever it says.
    pub(super) fn ignore(&mut self, name: &str) {
        self.fields.remove(name);
    }

    /// Refuses whatever is left and asks for anything, which null does not.
    pub(super) fn finish(self) -> Result<(), ApiError> {
        match self.fields.iter().find(|(_, raw)| raw.get() != "null") {
            Some((name, _)) => Err(ApiError::field(&self.full(name), "is not a known field")),
            None => Ok(()),
        }
    }

    fn full(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }
}

/// `5.0` as the whole number that it is.
pub(super) fn whole(number: f64) -> Option<i64> {
    let is_whole = number.fract() == 0.0 && number.abs() < (1u64 << 53) as f64;
    is_whole.then_some(number as i64)
}
