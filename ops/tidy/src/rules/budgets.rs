//! How large things may be. Code that nobody can hold in their head is where faults hide.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::{Finding, RustFile};

/// Lines of a file, without its test code.
pub const FILE_LINES: usize = 400;
/// Lines of a file that no excuse may exceed.
pub const FILE_LINES_HARD: usize = 600;
/// Lines of a function, from its signature to its closing brace.
pub const FUNCTION_LINES: usize = 70;
/// Methods of a trait.
pub const TRAIT_METHODS: usize = 7;
/// Parameters of a function, `self` not counted.
pub const PARAMETERS: usize = 5;
/// Columns of a line.
pub const COLUMNS: usize = 100;

/// The rules of this file, as the ratchet spells them.
pub const RULES: &[&str] = &["file-lines", "function-lines", "trait-methods", "parameters"];

/// Breaches in one file.
pub fn check(file: &RustFile) -> Vec<Finding> {
    let mut findings = file_lines(file);
    findings.extend(columns(file));
    let mut items = Items { file, findings, in_trait_impl: false };
    items.visit_file(&file.syntax);
    items.findings
}

fn file_lines(file: &RustFile) -> Vec<Finding> {
    let lines = file.code_lines();
    let finding = |reason| Finding::new(&file.path, 1, "file-lines", reason);
    if lines > FILE_LINES_HARD {
        let reason = format!("{lines} lines without tests, never more than {FILE_LINES_HARD}");
        vec![finding(reason)]
    } else if lines > FILE_LINES {
        let reason = format!("{lines} lines without tests, at most {FILE_LINES}: split it");
        vec![finding(reason).measured("", lines)]
    } else {
        Vec::new()
    }
}

fn columns(file: &RustFile) -> Vec<Finding> {
    let too_long = |(_, line): &(usize, &str)| line.chars().count() > COLUMNS;
    let finding = |(idx, line): (usize, &str)| {
        let reason = format!("{} columns, at most {COLUMNS}", line.chars().count());
        Finding::new(&file.path, idx + 1, "columns", reason)
    };
    file.text.lines().enumerate().filter(too_long).map(finding).collect()
}

struct Items<'a> {
    file: &'a RustFile,
    findings: Vec<Finding>,
    in_trait_impl: bool,
}

impl Items<'_> {
    fn function(&mut self, signature: &syn::Signature, block: Option<&syn::Block>) {
        let line = signature.span().start().line;
        if self.file.is_test_line(line) {
            return;
        }
        let name = signature.ident.to_string();
        let lines = block.map_or(0, |block| block.span().end().line + 1 - line);
        if lines > FUNCTION_LINES {
            let reason = format!("`{name}` has {lines} lines, at most {FUNCTION_LINES}");
            self.push(line, "function-lines", reason, (name.clone(), lines));
        }
        let is_typed = |input: &&syn::FnArg| matches!(input, syn::FnArg::Typed(_));
        let count = signature.inputs.iter().filter(is_typed).count();
        if count > PARAMETERS && !self.in_trait_impl {
            let reason = format!(
                "`{name}` has {count} parameters, at most {PARAMETERS}: pass a struct of options"
            );
            self.push(line, "parameters", reason, (name, count));
        }
    }

    fn push(&mut self, line: usize, rule: &'static str, reason: String, size: (String, usize)) {
        let finding = Finding::new(&self.file.path, line, rule, reason);
        self.findings.push(finding.measured(size.0, size.1));
    }
}

impl<'ast> Visit<'ast> for Items<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, Some(&item.block));
        visit::visit_item_fn(self, item);
    }

    /// The number of parameters is checked where a trait is defined, not where it is
    /// implemented: the trait may be someone else's.
    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let outer = std::mem::replace(&mut self.in_trait_impl, item.trait_.is_some());
        visit::visit_item_impl(self, item);
        self.in_trait_impl = outer;
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, Some(&item.block));
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        let is_method = |item: &&syn::TraitItem| matches!(item, syn::TraitItem::Fn(_));
        let count = item.items.iter().filter(is_method).count();
        let line = item.ident.span().start().line;
        if count > TRAIT_METHODS && !self.file.is_test_line(line) {
            let name = item.ident.to_string();
            let reason = format!("`{name}` has {count} methods, at most {TRAIT_METHODS}");
            self.push(line, "trait-methods", reason, (name, count));
        }
        visit::visit_item_trait(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.function(&item.sig, item.default.as_ref());
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_rules(text: &str, expected: &[&str]) {
        let file = RustFile::parse("kernels/src/a.rs", text).unwrap();
        let rules: Vec<_> = check(&file).iter().map(|finding| finding.rule).collect();
        assert_eq!(rules, expected, "{text:.200}");
    }

    #[test]
    fn files_have_a_budget_and_a_hard_cap() {
        check_rules(&"// a\n".repeat(FILE_LINES), &[]);
        check_rules(&"// a\n".repeat(FILE_LINES + 1), &["file-lines"]);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "// a\n".repeat(700));
        check_rules(&tests, &[]);
        let file = RustFile::parse("a.rs", &"// a\n".repeat(FILE_LINES_HARD + 1)).unwrap();
        assert!(check(&file)[0].measure.is_none(), "nothing excuses the hard cap");
    }

    #[test]
    fn functions_have_a_budget_of_lines() {
        let body = |lines: usize| format!("fn a() {{\n{}}}\n", "    b();\n".repeat(lines - 2));
        check_rules(&body(FUNCTION_LINES), &[]);
        check_rules(&body(FUNCTION_LINES + 1), &["function-lines"]);
        check_rules(&format!("#[cfg(test)]\n{}", body(200)), &[]);
        check_rules(&format!("impl A {{\n{}}}\n", body(200)), &["function-lines"]);
    }

    #[test]
    fn parameters_and_methods_are_counted() {
        check_rules("fn a(b: B, c: B, d: B, e: B, f: B) {}", &[]);
        check_rules("fn a(b: B, c: B, d: B, e: B, f: B, g: B) {}", &["parameters"]);
        check_rules("impl A { fn a(&self, b: B, c: B, d: B, e: B, f: B) {} }", &[]);
        check_rules("impl T for A { fn a(b: B, c: B, d: B, e: B, f: B, g: B) {} }", &[]);
        check_rules("trait T { fn a(b: B, c: B, d: B, e: B, f: B, g: B); }", &["parameters"]);
        let methods = |n| {
            format!("trait T {{ {} }}", (0..n).map(|i| format!("fn m{i}();")).collect::<String>())
        };
        check_rules(&methods(TRAIT_METHODS), &[]);
        check_rules(&methods(TRAIT_METHODS + 1), &["trait-methods"]);
    }

    #[test]
    fn lines_have_a_budget_of_columns() {
        check_rules(&format!("// {}\n", "é".repeat(COLUMNS - 3)), &[]);
        check_rules(&format!("// {}\n", "é".repeat(COLUMNS - 2)), &["columns"]);
    }
}
