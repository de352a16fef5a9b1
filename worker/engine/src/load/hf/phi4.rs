//! Phi 4 multimodal's tensors.

use crate::load::checkpoint::Checkpoint;

/// What maps are called that have adapters beside them.
const BASE: &str = "base_layer";
const ADAPTER: &str = ".lora_";
/// Those that text alone goes without.
const OF_OTHERS: [&str; 2] = [".vision.", ".speech."];

/// Leaves adapters for pictures and sound out, and gives what they are beside the names that others
/// have. A folder with one that text goes through is left as it is, so that maps are missing.
pub(super) fn leave_adapters(checkpoint: &mut Checkpoint<'_>) {
    let is_adapter = |name: &str| name.contains(ADAPTER);
    let is_of_text =
        |name: &String| is_adapter(name) && !OF_OTHERS.iter().any(|other| name.contains(other));
    if checkpoint.tensors.keys().any(is_of_text) {
        return;
    }
    checkpoint.tensors.retain(|name, _| !is_adapter(name));
    checkpoint.open(BASE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::checkpoint::Stored;

    #[test]
    fn adapters_of_text_are_not_left_out() {
        let check = |adapter: &str, want: &[&str]| {
            let names = ["a.base_layer.weight".to_owned(), format!("a.lora_A.{adapter}.weight")];
            let stored = || Stored::new("file", &[2], ("?", None), &[]);
            let tensors = names.into_iter().map(|name| (name, stored())).collect();
            let mut all = Checkpoint { path: "folder".to_owned(), tensors };
            leave_adapters(&mut all);
            assert_eq!(all.tensors.keys().collect::<Vec<_>>(), want, "{adapter}");
        };
        check("vision", &["a.weight"]);
        check("speech", &["a.weight"]);
        check("default", &["a.base_layer.weight", "a.lora_A.default.weight"]);
    }
}
