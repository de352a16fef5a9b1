//! What schemas say of numbers, in terms that their compiler can count in: it has bounds as
//! doubles, which it makes whole numbers of 64 bits of, and multiples as 32 bits and a scale.
//! Beyond that it would be wrong without saying so.

use std::cmp::Ordering;

use serde_json::{Map, Number, Value};

type Fields = Map<String, Value>;

/// From here on doubles leave whole numbers out.
const EXACT_BELOW: f64 = (1u64 << 53) as f64;
/// The outermost doubles that are whole numbers of 64 bits, as are their opposites.
const HIGHEST: f64 = 9_223_372_036_854_774_784.0;
/// Whole numbers from here on have as many digits as 64 bits may have.
const LONG: f64 = 1e18;
/// Digits of a bound as it is written out.
const BOUND_DIGITS_MOST: usize = 100;
/// Decimals of what numbers are multiples of, and it without them: ten times the one and nine times
/// the other are added up in 32 bits.
const SCALE_MOST: u32 = 8;
const COEFFICIENT_MOST: f64 = 1e8;
/// How many remainders there may be at most, each of which is a state.
const REMAINDERS_MOST: u64 = 100_000;
/// And the number itself where only so many digits may follow, since whether some do is looked for
/// at each digit: more would cost an answer its share.
const WITHIN_MOST: u64 = 2000;

const COUNTS: [&str; 6] =
    ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];
/// A bound, the same without the bound itself, and whether it is the lower one.
const BOUNDS: [(&str, &str, bool); 2] =
    [("minimum", "exclusiveMinimum", true), ("maximum", "exclusiveMaximum", false)];

/// A decimal number: `coefficient` / 10^`scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decimal {
    pub(crate) coefficient: u64,
    pub(crate) scale: u32,
}

impl Decimal {
    /// As the compiler finds it.
    fn of(value: f64) -> Option<Self> {
        let (mut coefficient, mut scale) = (value.abs(), 0);
        while coefficient.fract() != 0.0 && scale < SCALE_MOST {
            coefficient *= 10.0;
            scale += 1;
        }
        let is_found =
            coefficient.fract() == 0.0 && (1.0..=COEFFICIENT_MOST).contains(&coefficient);
        is_found.then_some(Self { coefficient: coefficient as u64, scale })
    }

    /// What `multipleOf` these fields have, if its compiler finds it as it is written.
    pub(crate) fn of_multiple(fields: &Fields) -> Option<Self> {
        Self::of(fields.get("multipleOf")?.as_f64()?)
    }

    /// How many remainders digits are told apart by, about: zeros at the end cost nothing.
    pub(crate) fn remainders(self) -> u64 {
        let mut remainders = self.coefficient;
        while remainders.is_multiple_of(10) && remainders > 0 {
            remainders /= 10;
        }
        remainders
    }
}

/// Writes what `fields` say of numbers so that the compiler makes of it what it says, or less.
pub(crate) fn mend(fields: &mut Fields) {
    for name in COUNTS {
        let whole = |value: f64| value.fract() == 0.0 && (0.0..EXACT_BELOW).contains(&value);
        let count = fields.get(name).filter(|value| value.is_f64()).and_then(Value::as_f64);
        if let Some(count) = count.filter(|count| whole(*count)) {
            fields.insert(name.to_owned(), Value::from(count as u64));
        }
    }
    let is_whole = fields.get("type").is_some_and(|kind| kind == "integer");
    for (bound, open, is_low) in BOUNDS {
        let far = |value: Option<&Value>| match value {
            Some(Value::Number(number)) if magnitude(number) >= EXACT_BELOW => Some(number.clone()),
            _ => None,
        };
        if let Some(number) = far(fields.get(bound)) {
            // As draft 4 says it.
            if fields.get(open) == Some(&Value::Bool(true)) {
                fields.insert(open.to_owned(), Value::Number(number.clone()));
            }
            fields.insert(bound.to_owned(), inward(&number, is_low, (false, is_whole)));
        }
        if let Some(number) = far(fields.get(open)) {
            fields.insert(open.to_owned(), inward(&number, is_low, (true, is_whole)));
        }
    }
    // Without another bound the compiler looks for one of one digit more.
    let bound = |idx: usize| {
        let (bound, open, _) = BOUNDS[idx];
        let number = |name: &str| fields.get(name).and_then(Value::as_f64);
        number(bound).or_else(|| number(open))
    };
    match (bound(0), bound(1)) {
        (Some(low), None) if low >= LONG => {
            fields.insert("maximum".to_owned(), written(HIGHEST));
        }
        (None, Some(high)) if high <= -LONG => {
            fields.insert("minimum".to_owned(), written(-HIGHEST));
        }
        _ => {}
    }
    let multiple = fields.get("multipleOf").and_then(Value::as_f64);
    if let Some(found) = multiple.and_then(found_as_written) {
        fields.insert("multipleOf".to_owned(), Value::from(found));
    }
}

fn magnitude(number: &Number) -> f64 {
    number.as_f64().map_or(0.0, f64::abs)
}

/// The nearest double that lets nothing pass which `bound` does not; `is_open`: nor itself.
fn inward(bound: &Number, is_low: bool, (is_open, is_whole): (bool, bool)) -> Value {
    let exact = bound.as_i64().map(i128::from).or_else(|| bound.as_u64().map(i128::from));
    let near = bound.as_f64().unwrap_or_default();
    if !is_low && !is_open && is_whole && near > HIGHEST {
        // The double next to it is made this again.
        return Value::from(i64::MAX);
    }
    let passes = |double: f64| {
        let order = match exact {
            Some(exact) => (double as i128).cmp(&exact),
            None => double.total_cmp(&near),
        };
        let inner = if is_low { Ordering::Greater } else { Ordering::Less };
        order == inner || (!is_open && order == Ordering::Equal)
    };
    let mut double = near;
    while !passes(double) && double.is_finite() {
        double = if is_low { double.next_up() } else { double.next_down() };
    }
    written(if is_low { double.max(-HIGHEST) } else { double.min(HIGHEST) })
}

/// A double so that what reads it again has the same.
fn written(double: f64) -> Value {
    if double.abs() <= HIGHEST { Value::from(double as i64) } else { Value::from(double) }
}

/// 0.07, ten times which is not quite 0.7, as a double of which the compiler finds the decimals.
/// `None` where there is none, or nothing need be done.
fn found_as_written(multiple: f64) -> Option<f64> {
    let is_found = |double: f64| {
        let Decimal { coefficient, scale } = Decimal::of(double)?;
        (coefficient as f64 / 10f64.powi(scale as i32) == multiple.abs()).then_some(double)
    };
    if is_found(multiple).is_some() {
        return None;
    }
    let (up, down) = (multiple.next_up(), multiple.next_down());
    [up, down, up.next_up(), down.next_down()].into_iter().find_map(is_found)
}

/// The first keyword of `fields`, which were mended, of which the compiler makes something else,
/// and why.
pub(crate) fn unfollowed(fields: &Fields) -> Option<(&'static str, &'static str)> {
    for (bound, open, is_low) in BOUNDS {
        for name in [bound, open] {
            let Some(value) = fields.get(name).and_then(Value::as_f64) else { continue };
            if (is_low && value > HIGHEST) || (!is_low && value < -HIGHEST) {
                return Some((name, "lies beyond what 64 bits count to"));
            }
            if value.to_string().len() > BOUND_DIGITS_MOST {
                return Some((name, "has more than a hundred digits"));
            }
        }
    }
    if let Some(multiple) = fields.get("multipleOf").and_then(Value::as_f64) {
        match Decimal::of(multiple) {
            None => return Some(("multipleOf", why_not_found(multiple))),
            Some(multiple)
                if multiple.remainders() > REMAINDERS_MOST
                    || is_ending(fields) && multiple.coefficient > WITHIN_MOST =>
            {
                return Some(("multipleOf", "leaves more remainders than can be told apart"));
            }
            Some(_) => {}
        }
    }
    let known = ["const", "enum"].into_iter();
    known
        .filter(|name| fields.get(*name).is_some_and(|value| !is_exact(value)))
        .map(|name| (name, "has a number of more digits than doubles have"))
        .next()
}

/// Why the compiler does not find `multiple` as it is written.
fn why_not_found(multiple: f64) -> &'static str {
    let written = multiple.abs().to_string();
    let is_short = written.contains('.') && written.len() <= "1234567.8".len();
    match is_short {
        true => "is one of a few decimals that the compiler cannot read, such as 0.53 and 1.06",
        false => "is not above 0 with 8 decimals and 8 digits",
    }
}

/// Whether numbers of either sign end somewhere.
fn is_ending(fields: &Fields) -> bool {
    let ends = |(bound, open, is_low): &(&str, &str, bool)| {
        let values = [bound, open].into_iter().filter_map(|name| fields.get(*name)?.as_f64());
        values.into_iter().any(|value| if *is_low { value < 0.0 } else { value > 0.0 })
    };
    BOUNDS.iter().any(ends)
}

/// Whether numbers in `value` are found as they are written.
fn is_exact(value: &Value) -> bool {
    match value {
        Value::Number(number) => {
            let double = number.as_f64().unwrap_or_default();
            let exact = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
            // The double next to the highest is made it again; beyond, no sign can be changed.
            number.as_i64() == Some(i64::MAX)
                || double.abs() <= HIGHEST && exact.is_none_or(|exact| double as i128 == exact)
        }
        Value::Array(list) => list.iter().all(is_exact),
        Value::Object(fields) => fields.values().all(is_exact),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const LAST: i64 = HIGHEST as i64;

    fn mended(fields: Value) -> Value {
        let Value::Object(mut fields) = fields else { panic!("fields") };
        mend(&mut fields);
        Value::Object(fields)
    }

    #[test]
    fn bounds_that_doubles_do_not_have_move_inward() {
        let check =
            |fields: Value, want: Value| assert_eq!(mended(fields.clone()), want, "{fields}");
        let most = i64::MAX;
        check(
            json!({ "type": "integer", "minimum": i64::MIN, "maximum": most }),
            json!({ "type": "integer", "minimum": -LAST, "maximum": most }),
        );
        check(
            json!({ "minimum": i64::MIN, "exclusiveMaximum": u64::MAX }),
            json!({ "minimum": -LAST, "exclusiveMaximum": LAST }),
        );
        check(
            json!({ "minimum": 9_007_199_254_740_993u64, "maximum": 9_007_199_254_740_993u64 }),
            json!({ "minimum": 9_007_199_254_740_994u64, "maximum": 9_007_199_254_740_992u64 }),
        );
        check(
            json!({ "exclusiveMinimum": 9_007_199_254_740_992u64 }),
            json!({ "exclusiveMinimum": 9_007_199_254_740_994u64 }),
        );
        check(
            json!({ "maximum": 9_007_199_254_740_992u64, "exclusiveMaximum": true }),
            json!({
                "maximum": 9_007_199_254_740_992u64, "exclusiveMaximum": 9_007_199_254_740_991u64,
            }),
        );
        check(
            json!({ "minimum": 1e18 }),
            json!({ "minimum": 1_000_000_000_000_000_000u64, "maximum": LAST }),
        );
        check(
            json!({ "maximum": -2e18 }),
            json!({ "maximum": -2_000_000_000_000_000_000i64, "minimum": -LAST }),
        );
        check(json!({ "minimum": -1e300 }), json!({ "minimum": -LAST }));
        let plain = json!({ "minimum": -3, "exclusiveMaximum": 2.5, "maxLength": 2.5 });
        check(plain.clone(), plain);
        check(json!({ "minLength": 2.0 }), json!({ "minLength": 2 }));
    }

    #[test]
    fn decimals_are_found_as_they_are_written() {
        for (multiple, coefficient, scale) in
            [(0.07, 7, 2), (0.01, 1, 2), (1e-8, 1, 8), (2.5, 25, 1), (86_400.0, 86_400, 0)]
        {
            let mended = mended(json!({ "multipleOf": multiple }));
            let found = Decimal::of_multiple(mended.as_object().unwrap());
            assert_eq!(found, Some(Decimal { coefficient, scale }), "{multiple}");
        }
    }

    #[test]
    fn what_the_compiler_would_get_wrong_is_named() {
        let check = |fields: Value, want: Option<&str>| {
            let mended = mended(fields.clone());
            let found = unfollowed(mended.as_object().unwrap());
            assert_eq!(found.map(|(name, _)| name), want, "{fields}");
        };
        for multiple in [json!(3_000_017), json!(982_451_653), json!(1e-9), json!(0), json!(1e300)]
        {
            check(json!({ "multipleOf": multiple }), Some("multipleOf"));
        }
        for (multiple, want) in [(0.53, "cannot"), (1.06, "cannot"), (1e-9, "8 decimals")] {
            let mended = mended(json!({ "multipleOf": multiple }));
            let (_, why) = unfollowed(mended.as_object().unwrap()).unwrap();
            assert!(why.contains(want), "{multiple}: {why}");
        }
        check(json!({ "multipleOf": -1_000_000, "minimum": 1 }), None);
        check(json!({ "multipleOf": 2000, "minimum": 1, "maximum": 1e7 }), None);
        check(json!({ "multipleOf": 65_536, "minimum": 1 }), None);
        check(json!({ "multipleOf": 65_536, "maximum": 2 }), Some("multipleOf"));
        check(json!({ "multipleOf": 1e6, "exclusiveMinimum": -2 }), Some("multipleOf"));
        check(json!({ "multipleOf": { "type": "number" } }), None);
        check(json!({ "minimum": 1e19 }), Some("minimum"));
        check(json!({ "exclusiveMaximum": i64::MIN }), Some("exclusiveMaximum"));
        check(json!({ "minimum": 5e-324, "maximum": 1 }), Some("minimum"));
        check(json!({ "minimum": i64::MIN, "maximum": i64::MAX }), None);
        check(json!({ "const": i64::MIN }), Some("const"));
        check(json!({ "enum": [1, { "a": [9_007_199_254_740_993u64] }] }), Some("enum"));
        check(json!({ "const": i64::MAX }), None);
        check(json!({ "enum": [1.5, -3, 9_007_199_254_740_992u64, "x", 1e17] }), None);
    }
}
