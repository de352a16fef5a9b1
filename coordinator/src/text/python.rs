//! Jinja as Python has it and the `transformers` library sets it up: what the engine has not, or
//! has otherwise.

mod arguments;
mod filters;
mod numbers;
mod source;
mod texts;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value, escape_formatter};
use minijinja_contrib::{globals, pycompat};

use super::json::JsonWriter;

/// Steps that a rendering may take, a second or two of them: some fifty are a message's.
const FUEL: u64 = 20_000_000;

/// An environment without templates.
///
/// # Errors
/// None that is known of.
pub(super) fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(FUEL));
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(method);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(|out, state, value| match value.kind() {
        ValueKind::Number => Ok(out.write_str(&filters::shown(value))?),
        _ => escape_formatter(out, state, value),
    });
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("joiner", |args: Rest<ValueOrKwargs>| {
        let [sep] = arguments::placed(&args.into_values(), ["sep"])?;
        Ok::<_, Error>(globals::joiner(sep))
    });
    environment.add_function("cycler", |items: Rest<Value>| globals::cycler(items.to_vec()));
    environment.add_filter("tojson", |value: &Value, options: Kwargs| {
        JsonWriter::of(&options)?.text(value)
    });
    environment.add_filter(source::PERCENT, numbers::percent);
    filters::add(&mut environment);
    filters::add_tests(&mut environment);
    Ok(environment)
}

/// Adds the template `name`.
///
/// # Errors
/// A source that is not Jinja.
pub(super) fn add_template(
    environment: &mut Environment<'static>,
    name: &'static str,
    source: &str,
) -> Result<(), Error> {
    let source = source::in_jinja(source);
    // What is changed is not Jinja where the source is not, and its errors are told of that.
    let changed = source::with_percent(&source);
    match changed.map(|changed| environment.add_template_owned(name, changed)) {
        Some(Ok(())) => Ok(()),
        Some(Err(_)) | None => environment.add_template_owned(name, source),
    }
}

/// Calls `method` of `value`, where Jinja has none of this name.
fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let own = match (value.as_str(), value.kind()) {
        (Some(text), _) => texts::method(text, method, args)?,
        (None, ValueKind::Seq) if method == "index" => {
            let (wanted,): (Value,) = from_args(args)?;
            let found = value.try_iter()?.position(|item| item == wanted);
            Some(found.map(Value::from).ok_or_else(|| not_found(&wanted))?)
        }
        (None, ValueKind::Map | ValueKind::Seq) if method == "copy" => {
            from_args::<()>(args)?;
            Some(value.clone())
        }
        // Not for the template to know: a caller's message may be without what it asks for.
        (None, kind @ (ValueKind::None | ValueKind::Undefined)) => {
            let what = format!("{kind} has no method named {method}");
            return Err(Error::new(ErrorKind::InvalidOperation, what));
        }
        _ => None,
    };
    own.map_or_else(|| pycompat::unknown_method_callback(state, value, method, args), Ok)
}

fn not_found(wanted: &Value) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{wanted:?} is not in it"))
}

#[cfg(test)]
mod tests {
    use minijinja::context;

    use super::*;

    fn render(source: &str) -> Result<String, Error> {
        let mut environment = environment()?;
        add_template(&mut environment, "it", source)?;
        let messages = [context! { role => "user", content => "Hi there" }];
        let strftime_now = Value::from_function(|format: &str| format.to_owned());
        environment.get_template("it")?.render(context! { messages, strftime_now })
    }

    /// Templates and what transformers 5.23 makes of them.
    fn check(templates: &[(&str, &str)]) {
        for (source, want) in templates {
            assert_eq!(render(source).unwrap(), *want, "{source}");
        }
    }

    /// What transformers refuses too, and why.
    #[test]
    fn refusals_are_named() {
        let check = |source: &str, want: &str| {
            let seen = render(source).unwrap_err().to_string();
            assert!(seen.contains(want), "{source}: {seen}");
        };
        check("{{ undefined_thing.x }}", "`undefined_thing` is undefined");
        check("{{ none.strip() }}", "invalid operation: none has no method named strip");
        check("{{ 'a'.nope() }}", "unknown method: string has no method named nope");
        check("{{ 1|default(2, 3, 4) }}", "3 arguments, at most 2 of which are known");
        check("{{ 1|default(2, wrong=3) }}", "the argument wrong is not known");
        check("{{ 1|default(2, default_value=3) }}", "default_value is given twice");
        check("{{ 'a'.split('') }}", "sep = '': must be a separator");
        check("{{ 'a'.split(1) }}", "sep = 1: must be a text");
        check("{{ 'a'.split('a', 'b') }}", "maxsplit = 'b': must be an integer");
        check("{{ 'a'.replace('a') }}", "new is not given");
        check("{{ 'a'.index('z') }}", "'z' is not in it");
        check("{{ 'a'.center(3, 'ab') }}", "fillchar = 'ab': must be one character");
        check("{{ 'abc'|truncate(2) }}", "length = 2: must be at least 3");
        check("{{ '%s %s' % 'a' }}", "too few values for what % names");
        check("{{ '%s' % ('a', 'b') }}", "more values than % names");
        check("{{ '%(a)s' % {'b': 1} }}", "a is not given");
        check("{{ '%q' % 1 }}", "\"%q\": not a kind of what is put in");
        check("{{ '%' % 1 }}", "\"%\": no kind of what is put in");
        check("{{ '%9999d' % 1 }}", "must be at most 4096");
        check("{{ '%d' % 'a' }}", "'string' cannot be formatted in decimal format");
        check("{{ 7 % 0 }}", "unable to calculate 7 % 0");
        check("{{ none % 2 }}", "% operator on unsupported types none and number");
        check("{% if %}", "syntax error");
    }

    #[test]
    fn what_is_undefined_is_empty() {
        check(&[
            ("{{ undefined_thing|length }}", "0"),
            ("{{ undefined_thing|count }}", "0"),
            ("{{ undefined_thing|first }}|", "|"),
            ("{{ undefined_thing|last }}|", "|"),
            ("{{ undefined_thing|items|list }}", "[]"),
            ("{{ undefined_thing|wordcount }}", "0"),
            ("{{ undefined_thing|truncate(3) }}|", "|"),
            ("{{ undefined_thing|center(3) }}|", "   |"),
            ("{{ undefined_thing|urlencode }}|", "|"),
            ("{% if messages[0].tool_calls|length > 0 %}calls{% else %}none{% endif %}", "none"),
            ("{{ undefined_thing|list }}{{ undefined_thing|join(',') }}", "[]"),
            ("{{ undefined_thing|trim }}{{ undefined_thing|upper }}", ""),
            (
                "{{ undefined_thing ~ 'a' }}{{ undefined_thing == 1 }}{{ 1 in undefined_thing }}",
                "aFalseFalse",
            ),
            ("{{ not undefined_thing }}", "True"),
            ("{{ undefined_thing|sort }}{{ undefined_thing|map('upper')|list }}", "[][]"),
            ("{{ undefined_thing|selectattr('a')|list }}", "[]"),
            ("{% for x in undefined_thing %}a{% else %}E{% endfor %}", "E"),
        ]);
    }

    #[test]
    fn defaults() {
        check(&[
            ("{{ none|default('y', boolean=true) }}", "y"),
            ("{{ ''|d('y', boolean=true) }}", "y"),
            ("{{ undefined_thing|default(default_value='z') }}", "z"),
            ("{{ ''|default(default_value='z', boolean=true) }}", "z"),
            ("{{ ''|d(boolean=true) }}", ""),
            ("{{ 0|default(7, boolean=false) }}", "0"),
            ("{{ undefined_thing|d }}|{{ undefined_thing|d('q') }}{{ ''|d('y', true) }}", "|qy"),
            ("{{ ''|default('y') }}{{ none|default('y') }}", "None"),
        ]);
    }

    #[test]
    fn methods_of_texts() {
        check(&[
            ("{{ \"it's a TEST\".title() }}", "It'S A Test"),
            ("{{ '\\x1fa\\x1c'.strip() }}", "a"),
            ("{{ 'ab'.swapcase() }}", "AB"),
            ("{{ 'x'.center(5,'-') }}", "--x--"),
            ("{{ 'a,b'.partition(',') }}", "('a', ',', 'b')"),
            ("{{ ' a b '.split(maxsplit=1) }}", "['a', 'b ']"),
            ("{{ 'a,b,c'.split(',', maxsplit=1) }}", "['a', 'b,c']"),
            ("{{ 'a b c'.split(maxsplit=1) }}", "['a', 'b c']"),
            ("{{ 'a=b=c'.split('=', maxsplit=1)[1] }}", "b=c"),
            ("{{ 'ab'.center(6) }}", "  ab  "),
            ("{{ 'a=b=c'.split('=', maxsplit=1) }}", "['a', 'b=c']"),
            ("{{ 'a=b=c'.rsplit('=', maxsplit=1) }}", "['a=b', 'c']"),
            ("{{ 'a b c'.rsplit(maxsplit=1) }}", "['a b', 'c']"),
            ("{{ 'a=b=c'.split(sep='=') }}", "['a', 'b', 'c']"),
            ("{{ 'a=b=c'.split(sep='=', maxsplit=1) }}", "['a', 'b=c']"),
            ("{{ 'a b'.split(sep=none) }}", "['a', 'b']"),
            ("{{ '  a  b  c '.rsplit(none, 1) }}", "['  a  b', 'c']"),
            ("{{ '  '.split(none, 1) }}", "[]"),
            (
                "{{ 'a\\nb\\r\\nc\\rd'.splitlines(keepends=true) }}",
                "['a\\n', 'b\\r\\n', 'c\\r', 'd']",
            ),
            (
                "{{ 'a\\x0bb\\x0cc\\x1cd\\x85e\\u2028f'.splitlines() }}",
                "['a', 'b', 'c', 'd', 'e', 'f']",
            ),
            ("{{ 'a\\n\\nb'.splitlines(keepends=false) }}", "['a', '', 'b']"),
            ("{{ 'abcabc'.find('c', 3) }}", "5"),
            ("{{ 'abcabc'.find('c', 3, 5) }}", "-1"),
            ("{{ 'abcabc'.rfind('a', 0, 2) }}", "0"),
            ("{{ 'abcabc'.index('c', 3) }}", "5"),
            ("{{ 'abcabc'.rindex('a') }}", "3"),
            ("{{ 'abcabc'.count('a', 1) }}", "1"),
            ("{{ 'abcabc'.startswith('b', 1) }}", "True"),
            ("{{ 'abcabc'.endswith('b', 0, 2) }}", "True"),
            ("{{ 'éabc'.find('c', -1) }}", "3"),
            ("{{ 'a'.startswith(('a',), 0) }}", "True"),
            ("{{ 'aBß'.swapcase() }}", "AbSS"),
            ("{{ 'abc'.center(6,'*') }}", "*abc**"),
            ("{{ 'ab'.center(5,'*') }}", "**ab*"),
            ("{{ 'abc'.center(8,'*') }}", "**abc***"),
            ("{{ 'abc'.center(2) }}", "abc"),
            ("{{ \"it's a te-st x_y 3rd ÉCOLE\".title() }}", "It'S A Te-St X_Y 3Rd École"),
            ("{{ \"ß\".title() }}", "Ss"),
            ("{{ '12'.isdecimal() }}", "True"),
            ("{{ '²'.isdecimal() }}", "False"),
            ("{{ 'a\\tb'.expandtabs() }}", "a       b"),
            ("{{ 'a\\tb'.expandtabs(4) }}", "a   b"),
            ("{{ 'a\\tb'.expandtabs(tabsize=2) }}", "a b"),
            ("{{ 'ß'.casefold() }}", "ss"),
            (
                "{% set a, b, c = 'x=y'.partition('=') %}{{ a }}{{ c }}{{ 'ab'.partition(',') }}",
                "xy('ab', '', '')",
            ),
            (
                "{{ 'abc'.rpartition('=')|join('|') }}{{ '<think>a'.removeprefix('<think>') }}",
                "||abca",
            ),
            ("{{ 'ab'.removesuffix('b') }}", "a"),
            (
                "{{ 'a,b,c'.rsplit(',', 1)|join('|') }}{{ ' a  b c '.rsplit() }}",
                "a,b|c['a', 'b', 'c']",
            ),
            ("{{ 'éa'.index('a') }}{{ [3, 4].index(4) }}", "11"),
            (
                "{{ 'x'.ljust(2, '.') }}{{ 'x'.rjust(2) }}{{ '7'.zfill(3) }}{{ '-7'.zfill(3) }}",
                "x. x007-07",
            ),
            ("{{ 'ÄB'.casefold() }}", "äb"),
            ("{{ 'aaa'.replace('a','b',1) }}{{ 'aaa'.replace('a','b',-1) }}", "baabbb"),
            ("{{ 'abc'.replace('','-',2) }}{{ ''.split() }}", "-a-bc[]"),
        ]);
    }

    #[test]
    fn texts_have_the_operator_percent() {
        check(&[
            ("{{ \"%s and %d\" % (\"a\", 3) }}", "a and 3"),
            ("{{ '%05d' % 42 }}", "00042"),
            ("{{ '%x' % 255 }}", "ff"),
            ("{{ '%.2f' % 1.234 }}", "1.23"),
            ("{{ 'turn %d of %s' % (1, 'x') }}", "turn 1 of x"),
            ("{{ '%s' % 'a' }}", "a"),
            ("{{ '%i' % 3 }}", "3"),
            ("{{ '%f' % 1.5 }}", "1.500000"),
            ("{{ '%X' % 255 }}", "FF"),
            ("{{ '%d%%' % 5 }}", "5%"),
            ("{{ '%5s|%-5s|' % ('a', 'b') }}", "    a|b    |"),
            ("{{ '%(name)s is %(age)d' % {'name': 'A', 'age': 3} }}", "A is 3"),
            ("{{ '%s' % [1, 'a'] }}", "[1, 'a']"),
            ("{{ '%s' % none }}", "None"),
            ("{{ '%s %s' % (none, true) }}", "None True"),
            ("{{ '%e' % 12345.678 }}", "1.234568e+04"),
            ("{{ '%g' % 0.0001 }}", "0.0001"),
            ("{{ '%r' % 'a' }}", "'a'"),
            ("{{ '%c' % 'x' }}", "x"),
            ("{{ '%+d' % 3 }}", "+3"),
            ("{{ '%o' % 8 }}", "10"),
            ("{{ '%#x' % 255 }}", "0xff"),
            ("{{ '%.3s' % 'abcdef' }}", "abc"),
            ("{{ '%d' % 3.9 }}", "3"),
            ("{{ '%s' % {'a': 1} }}", "{'a': 1}"),
            ("{{ '%%' % () }}", "%"),
            ("{{ '%s' % (1,) }}", "1"),
            ("{{ '%s' % 1.0 }}", "1.0"),
            ("{{ '%s' % ((1, 2),) }}", "(1, 2)"),
            ("{{ 'abc' % () }}", "abc"),
            ("{{ 'abc' % {} }}", "abc"),
            ("{{ 'abc' % {'a': 1} }}", "abc"),
            ("{{ 'abc' % [] }}", "abc"),
            ("{{ '%*d' % (5, 3) }}", "    3"),
            ("{{ '%.*f' % (2, 3.14159) }}", "3.14"),
            ("{{ '%s' % undefined_thing }}|", "|"),
            ("{{ ('%s' ~ '%s') % (1, 2) }}", "12"),
            ("{{ '%s' % 'a'|upper }}", "A"),
            ("{{ '%s' % messages[0].role }}", "user"),
            ("{{ '%s' % messages[0]['role'].upper() }}", "USER"),
            ("{{ 'a' + '%s' % 'b' + 'c' }}", "abc"),
            ("{{ '%s' % ('a' if true else 'b') }}", "a"),
            ("{{ '%s' % 'a' if true else 'b' }}", "a"),
            ("{{ ['%d' % 1, '%d' % 2] }}", "['1', '2']"),
            ("{{ {'a': '%d' % 1} }}", "{'a': '1'}"),
            ("{{ '%s'|upper|lower % 1 }}", "1"),
            ("{{ \"%s\" % \"%s\" % \"x\" }}", "x"),
            ("{{ '%s%%s' % 'a' % 'b' }}", "ab"),
            ("{%- if '%s' % 'a' == 'a' -%}yes{%- endif -%}", "yes"),
            ("{{ '%s' % -1 }}", "-1"),
            ("{{ '%s' % - 1 }}", "-1"),
            ("{{ 'a' 'b' % () }}", "ab"),
            ("{% macro f(a, b='%d' % 3) %}{{ a }}{{ b }}{% endmacro %}{{ f('%d' % 1) }}", "13"),
            (
                "{% for i in [1,2] %}{% if i % 2 %}{{ i }}{% elif i % 3 %}x{% endif %}{% endfor %}",
                "1x",
            ),
            (
                "{% raw %}{{ '%s' % 1 }}{% if %}{% endraw %}{# {{ 1 % 2 }} #}% {{ '{{ 1 % 2 }}' }}",
                "{{ '%s' % 1 }}{% if %}% {{ 1 % 2 }}",
            ),
            (
                "{{ 7 % 3 }}{{ -7 % 3 }}{{ 7.5 % 2 }}{{ 7 % -3 }}{{ 2 * 5 % 3 }}{{ 7 % 3 * 2 }}",
                "121.5-212",
            ),
            ("{{ 17 % 10 % 4 }}", "3"),
            ("{{ 1 + 7 % 4 }}{{ 2 ** 3 % 5 }}{{ 7 % 2 ** 2 }}{{ 'a' ~ 7 % 4 ~ 'b' }}", "433a3b"),
            ("{{ 3 - 7 % 4 }}{{ - 7 % 4 }}", "01"),
            ("{{ not 4 % 2 }}{{ true % 2 }}{{ (3 + 4) % 5 }}{{ [7][0] % 4 }}", "True123"),
            ("{{ messages|length % 2 }}{{ 8 % 3 is odd }}", "10"),
            (
                "{{ (8 % 3) is odd }}{{ 4 is even % 2 }}{{ [1,2,3][4 % 3] }}{{ 'abc'[1 % 2:] }}",
                "False12bc",
            ),
            ("{{ dict(a=5 % 3).a }}", "2"),
            ("{% for i in range(7) if i % 3 == 0 %}{{ loop.index0 % 2 }}{% endfor %}", "010"),
            (
                "{# {{ 1 % 2 }} #}{% raw %}{{ '%s' % 1 }}{% if %}{% endraw %}% {{ '{{ 1 % 2 }}' }}",
                "{{ '%s' % 1 }}{% if %}% {{ 1 % 2 }}",
            ),
            (
                "{{ \"a % b\" }}{{ 'it\\'s %s' % 'x' }}{% set f = '%s-%s' %}{{ f % ('a', 'b') }}",
                "a % bit's xa-b",
            ),
            (
                "{% set f = '%s-%s' %}{% set x = f % (1, 2) -%} |{{ x }}{{ (f % (1, 2))|upper }}",
                "|1-21-2",
            ),
        ]);
    }

    #[test]
    fn numbers() {
        check(&[
            ("{{ 1e16 }}", "1e+16"),
            ("{{ 'x'|int }}", "0"),
            ("{{ 1e20 }}", "1e+20"),
            ("{{ []|int }}", "0"),
            ("{{ ' 42 '|int }}", "42"),
            ("{{ '1_000'|int }}", "1000"),
            ("{{ 'inf'|int }}", "0"),
            ("{{ '--170141183460469231731687303715884105728'|int }}", "0"),
            ("{{ ''|int }}", "0"),
            ("{{ 'x'|float }}", "0.0"),
            ("{{ []|float }}", "0.0"),
            ("{{ ' 3 '|float }}", "3.0"),
            ("{{ 'x'|int(none) }}", "None"),
            ("{{ 0.00001 }}", "1e-05"),
            ("{{ 1e16|string }}", "1e+16"),
            ("{{ 1e300 }}", "1e+300"),
            ("{{ -1e17 }}", "-1e+17"),
            (
                "{{ '3.7'|int }}{{ 'x'|int(5) }}{{ 'x'|int(default=5) }}{{ '0x1f'|int(base=16) }}",
                "35531",
            ),
            ("{{ -3.9|int }}{{ none|int(3) }}", "-33"),
            (
                "{{ 'x'|float(2.5) }}{{ '1e5'|float }}{{ true|float }}{{ '12'|int(0, 8) }}",
                "2.5100000.01.010",
            ),
            ("{{ '-7'|int }}{{ 1e15 }}", "-71000000000000000.0"),
        ]);
    }

    #[test]
    fn filters_tests_and_functions() {
        check(&[
            ("{{ 'a\\nb'|indent('  ') }}", "a\n  b"),
            ("{{ {'b':1,'a':2}|dictsort(false,'value') }}", "[('b', 1), ('a', 2)]"),
            ("{{ strftime_now is callable }}", "True"),
            ("{{ '<b>&\"' | e }}", "&lt;b&gt;&amp;&#34;"),
            ("{{ '<b>&\"' | escape }}", "&lt;b&gt;&amp;&#34;"),
            ("{{ '<b>'|forceescape }}", "&lt;b&gt;"),
            ("{{ 'aaa'|replace('a','b',2) }}", "bba"),
            ("{{ 'long text here'|truncate(8) }}", "long..."),
            ("{{ 'a b c'|wordcount }}", "3"),
            (
                "{%- set j = joiner(', ') -%}{% for i in [1,2] %}{{ j() }}{{ i }}{% endfor %}",
                "1, 2",
            ),
            ("{{ 'a b'|urlencode }}", "a%20b"),
            ("{{ '<p>x</p>'|striptags }}", "x"),
            ("{{ 1000|filesizeformat }}", "1.0 kB"),
            ("{{ 'aaa'|replace('a','b',count=1) }}", "baa"),
            ("{{ 'aaa'|replace(old='a',new='b') }}", "bbb"),
            ("{{ 'aaa'|replace('a','b',none) }}", "bbb"),
            ("{{ {'b':1,'A':2,'a':3}|dictsort(true) }}", "[('A', 2), ('a', 3), ('b', 1)]"),
            ("{{ {'b':1,'a':2}|dictsort(false,'value',true) }}", "[('a', 2), ('b', 1)]"),
            ("{{ 'a\\nb\\n\\nc'|indent('  ') }}", "a\n  b\n\n  c"),
            (
                "{{ 'a\\nb\\n\\nc'|indent(width='> ', first=true, blank=true) }}",
                "> a\n> b\n> \n> c",
            ),
            ("{{ 'a\\nb\\n'|indent }}", "a\n    b\n"),
            ("{{ 'a\\n\\n'|indent(1) }}", "a\n\n"),
            ("{{ ''|indent(2, true) }}", "  "),
            ("{{ 'a\\r\\nb'|indent(2) }}", "a\n  b"),
            ("{{ '\\na'|indent(2, first=true) }}", "  \n  a"),
            ("{{ 'foo bar baz qux'|truncate(9) }}", "foo..."),
            ("{{ 'foo bar baz qux'|truncate(9, true) }}", "foo ba..."),
            ("{{ 'foo bar baz qux'|truncate(11) }}", "foo bar baz qux"),
            ("{{ 'foo bar baz qux'|truncate(11, false, '...', 0) }}", "foo bar..."),
            (
                "{{ 'foo bar baz qux'|truncate(length=9, killwords=true, end='.', leeway=0) }}",
                "foo bar .",
            ),
            ("{{ 'x y'|truncate }}", "x y"),
            ("{{ 'foobar baz1'|truncate(7, end='') }}", "foobar baz1"),
            ("{{ 'foobarbazqux'|truncate(6, leeway=0) }}", "foo..."),
            ("{{ \"it's a-b x_y, 3.5!\"|wordcount }}", "7"),
            ("{{ ''|wordcount }}", "0"),
            ("{{ 'a b&c/d?é=~-_.'|urlencode }}", "a%20b%26c/d%3F%C3%A9%3D~-_."),
            ("{{ {'a b':'c&d','e':1}|urlencode }}", "a+b=c%26d&e=1"),
            ("{{ [('a','b/c')]|urlencode }}", "a=b%2Fc"),
            ("{{ 5|urlencode }}", "5"),
            ("{{ ''|urlencode }}", ""),
            ("{{ '<a>'|forceescape }}", "&lt;a&gt;"),
            ("{{ '<a>'|e|forceescape }}", "&amp;lt;a&amp;gt;"),
            ("{{ 'abc'|center(6) }}", " abc  "),
            ("{{ 'abc'|center(width=7) }}", "  abc  "),
            ("{{ 'x'|center|length }}", "80"),
            ("{{ 5|string|center(3) }}", " 5 "),
            ("{{ 1.5e-7 }}", "1.5e-07"),
            ("{{ 123456789012345680.0 }}", "1.2345678901234568e+17"),
            ("{{ 'a'|trim(chars='a') }}", ""),
            ("{{ ['b','a']|sort(true) }}", "['b', 'a']"),
            ("{{ ['b','A']|sort(false, false) }}", "['A', 'b']"),
            ("{{ [{'a':2},{'a':1}]|sort(false, false, 'a') }}", "[{'a': 1}, {'a': 2}]"),
            ("{{ ['a','A']|unique(true)|list }}", "['a', 'A']"),
            ("{{ [1,2,3]|batch(linecount=2, fill_with='x')|list }}", "[[1, 2], [3, 'x']]"),
            ("{{ {'a':1,'b':2}|last }}", "b"),
            ("{{ ['a','B']|max(true) }}", "a"),
            ("{{ \"a'b\\\"<>&/\"|e }}", "a&#39;b&#34;&lt;&gt;&amp;/"),
            ("{{ ['<']|e }}", "[&#39;&lt;&#39;]"),
            ("{{ '<p>a  b</p>'|striptags }}", "a b"),
            ("{{ 1000000|filesizeformat }}", "1.0 MB"),
            ("{{ ['x','3']|map('int', default=9)|list }}", "[9, 3]"),
            ("{{ [[1,2],[3]]|map('join', d='-')|list }}", "['1-2', '3']"),
            ("{{ ['']|map('default', 'q', boolean=true)|list }}", "['q']"),
            ("{% set j = joiner() %}{% for i in [1,2,3] %}{{ j() }}{{ i }}{% endfor %}", "1, 2, 3"),
            ("{% set k = joiner(sep=' | ') %}{{ k() }}{{ k() }}", " | "),
            (
                "{{ range is callable }}{{ 'a' is callable }}{{ none is callable }}",
                "TrueFalseFalse",
            ),
            ("{{ [] is callable }}", "False"),
            ("{{ 'foo bar baz qux'|truncate(length=9, killwords=true, end='.') }}", "foo bar ."),
        ]);
    }
}
