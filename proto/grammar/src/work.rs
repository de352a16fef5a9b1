//! What compiling a schema costs beside what its compiler counts, found before it begins.

use serde_json::Value;

use crate::numbers::Decimal;
use crate::schema::{each_of, is_joined, joins_multiples};

/// Pairs of patterns of fields that are compared, which takes half a millisecond each.
pub(crate) const PAIRS_MOST: usize = 1000;
/// Where definitions stand that are compiled once, whatever refers to them.
const DEFINED: [&str; 2] = ["#/$defs/", "#/definitions/"];
/// What numbers must be multiples of at once is multiplied in 32 bits.
const JOINED_MOST: u64 = u16::MAX as u64;
/// Remainders of all that numbers must be multiples of, where not all can be followed.
const REMAINDERS_KEPT: u64 = 4000;

/// Why `schema` costs too much, or more than can be counted.
pub(crate) fn over(schema: &Value) -> Option<String> {
    let pairs = pairs(schema);
    if pairs > PAIRS_MOST {
        return Some(format!("patternProperties: {pairs} pairs to compare, of {PAIRS_MOST}"));
    }
    let mut multiples = Multiples::of(schema);
    let mut over = None;
    each_of(schema, &mut |fields| {
        if Decimal::of_multiple(fields).is_some_and(|multiple| !multiples.has_room(multiple)) {
            over = Some(format!("multipleOf: all at once they come to more than {JOINED_MOST}"));
        }
    });
    over
}

/// What `multipleOf` may say in one schema: where parts of it may come to be asked of one number,
/// that is counted.
pub(crate) struct Multiples {
    is_joined: bool,
    all: Option<Decimal>,
}

impl Multiples {
    pub(crate) fn of(schema: &Value) -> Self {
        Self { is_joined: joins_multiples(schema), all: None }
    }

    /// Takes this one too, if there is room.
    fn has_room(&mut self, multiple: Decimal) -> bool {
        let Some(all) = self.all.filter(|_| self.is_joined) else {
            // It may be asked of one number twice.
            let has_room = !self.is_joined || common(multiple, multiple).is_some();
            self.all = has_room.then_some(multiple);
            return has_room;
        };
        let both = common(all, multiple);
        self.all = both.or(self.all);
        both.is_some()
    }
}

/// The least that is a multiple of both; `None` where that is too much.
fn common(a: Decimal, b: Decimal) -> Option<Decimal> {
    let scale = a.scale.max(b.scale);
    let at_scale = |it: Decimal| it.coefficient * 10u64.pow(scale - it.scale);
    let (a, b) = (at_scale(a), at_scale(b));
    let coefficient = (a / divisor(a, b)).checked_mul(b)?;
    (coefficient <= JOINED_MOST).then_some(Decimal { coefficient, scale })
}

fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// What a schema that is not followed in all that it says keeps of `multipleOf`.
pub(crate) struct Kept {
    multiples: Multiples,
    remainders: u64,
}

impl Kept {
    pub(crate) fn of(schema: &Value) -> Self {
        Self { multiples: Multiples::of(schema), remainders: 0 }
    }

    /// Whether there is room for this one too.
    pub(crate) fn keeps(&mut self, multiple: Decimal) -> bool {
        let remainders = self.remainders + multiple.remainders();
        let keeps = remainders <= REMAINDERS_KEPT && self.multiples.has_room(multiple);
        if keeps {
            self.remainders = remainders;
        }
        keeps
    }
}

/// Counted wherever something looks like a schema: references may lead anywhere. An object that
/// is joined with others is checked again by each of them, one that is referred to in some odd way
/// by each reference.
pub(crate) fn pairs(schema: &Value) -> usize {
    let (mut pairs, mut parts, mut ways) = (0usize, 1usize, 1usize);
    let is_joined = is_joined(schema);
    let mut todo = vec![schema];
    while let Some(value) = todo.pop() {
        let Value::Object(fields) = value else {
            todo.extend(value.as_array().into_iter().flatten());
            continue;
        };
        let list = |name: &str| fields.get(name).and_then(Value::as_array);
        let patterns = fields.get("patternProperties").and_then(Value::as_object);
        let patterns = patterns.map_or(0, serde_json::Map::len);
        pairs = pairs.saturating_add(patterns * patterns.saturating_sub(1) / 2);
        for name in ["anyOf", "oneOf"] {
            let options = list(name).into_iter().flatten().filter(|option| !is_scalar(option));
            ways = ways.saturating_mul(options.count().max(1));
        }
        let target = fields.get("$ref").and_then(Value::as_str);
        let is_odd = |target: &str| {
            let name = DEFINED.iter().find_map(|prefix| target.strip_prefix(prefix));
            name.is_none_or(|name| name.contains('/'))
        };
        parts += usize::from(target.is_some_and(is_odd));
        if is_joined {
            parts += usize::from(target.is_some()) + list("allOf").map_or(0, Vec::len);
        }
        todo.extend(fields.values());
    }
    let times = if is_joined { parts.saturating_mul(ways) } else { parts };
    pairs.saturating_mul(times)
}

/// Whether nothing of this has fields, and so none to compare: joined with what has, it is nothing.
fn is_scalar(option: &Value) -> bool {
    let kind = option.get("type").and_then(Value::as_str);
    kind.is_some_and(|kind| ["null", "boolean", "integer", "number", "string"].contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, json};

    fn patterns(count: usize) -> Value {
        let each = (0..count).map(|idx| (format!("^a{idx}$"), json!({})));
        json!({ "type": "object", "patternProperties": each.collect::<Map<_, _>>() })
    }

    #[test]
    fn patterns_of_fields_are_few_enough_to_compare() {
        let check = |schema: Value, is_over: bool| assert_eq!(over(&schema).is_some(), is_over);
        check(patterns(45), false);
        check(patterns(46), true);
        check(json!({ "default": patterns(46) }), true);
        let refers = |count: usize, target: &str| {
            let refers = vec![json!({ "$ref": target }); count];
            json!({ "prefixItems": refers, "$defs": { "a": patterns(10) } })
        };
        check(refers(100, "#/$defs/a"), false);
        check(refers(100, "#/$defs/a/patternProperties/b"), true);
        let joined = |count: usize| {
            let refers = vec![json!({ "$ref": "#/$defs/a", "type": "object" }); count];
            json!({ "prefixItems": refers, "$defs": { "a": patterns(10) } })
        };
        check(joined(10), false);
        check(joined(50), true);
        let word = json!({ "type": "string", "enum": ["a", "b"] });
        let beside = |options: &Value| {
            let mut schema = patterns(20);
            schema["patternProperties"]["b"] = word.clone();
            schema["default"] = json!({ "prefixItems": vec![json!({ "anyOf": options }); 10] });
            schema
        };
        let objects = json!([{ "type": "object" }, { "type": "array" }]);
        check(beside(&objects), false);
        let joins = |options: &Value| json!({ "allOf": [{ "type": "object" }, beside(options)] });
        check(joins(&objects), true);
        check(joins(&json!([{ "type": "object" }, { "type": "null" }])), false);
        let mut of_values = beside(&objects);
        of_values["enum"] = json!([{}]);
        check(of_values, true);
    }

    #[test]
    fn what_is_asked_of_one_number_can_be_multiplied() {
        let of = |multiples: &[f64]| {
            let each = multiples.iter().map(|multiple| json!({ "multipleOf": multiple }));
            each.collect::<Vec<_>>()
        };
        let check = |multiples: &[f64], is_over: bool| {
            assert!(over(&json!({ "prefixItems": of(multiples) })).is_none(), "{multiples:?}");
            let joined = json!({ "type": "integer", "allOf": of(multiples) });
            assert_eq!(over(&joined).is_some(), is_over, "{multiples:?}");
        };
        check(&[0.01, 5.0, 60.0, 100.0], false);
        check(&[97.0, 101.0], false);
        check(&[97.0, 101.0, 103.0], true);
        check(&[65_536.0, 65_537.0], true);
        check(&[65_536.0, 65_536.0], true);
    }

    /// Beside a list of words nothing else is asked of the numbers in the same schema.
    #[test]
    fn values_join_no_multiples() {
        let multiple = |of: f64| json!({ "type": "number", "multipleOf": of });
        let word = json!({ "type": "string", "enum": ["a", "b"] });
        let fields = json!({ "price": multiple(0.01), "qty": multiple(1000.0), "unit": word });
        let mut schema = json!({ "type": "object", "properties": fields });
        assert_eq!(over(&schema), None);
        schema["properties"]["day"] = multiple(86_400.0);
        schema["properties"]["it"] = json!({ "$ref": "#/$defs/a", "type": "object" });
        assert_eq!(over(&schema), None);
        for (name, beside) in
            [("multipleOf", json!(3)), ("properties", json!({})), ("anyOf", json!([{}]))]
        {
            let mut joined = schema.clone();
            joined["properties"]["it"][name] = beside;
            assert!(over(&joined).is_some(), "{name}");
        }
    }
}
