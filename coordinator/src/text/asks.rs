//! What a chat template shows that it wants to be told, by what it mentions.

/// What templates call how long to think, and callers too.
pub(crate) const EFFORT: &str = "reasoning_effort";
/// What templates call whether to think: Qwen's and GLM's, and DeepSeek's and Granite's.
const THINKING: [&str; 2] = ["enable_thinking", "thinking"];

/// What one template wants.
#[derive(Debug, Clone, Default)]
pub(super) struct Asks {
    /// How long to think.
    pub(super) effort: bool,
    /// The variables that say whether to think.
    pub(super) switches: Vec<&'static str>,
    /// The parts of a message, which it walks.
    pub(super) parts: bool,
}

impl Asks {
    pub(super) fn of(source: &str) -> Self {
        let is_named = |name: &&str| source.contains(*name);
        Self {
            effort: source.contains(EFFORT),
            switches: THINKING.into_iter().filter(is_named).collect(),
            parts: walks_parts(source),
        }
    }
}

/// Whether a template has a loop over what one message says, which is a list where callers sent
/// parts: `for part in message['content']`, or what it calls that.
fn walks_parts(source: &str) -> bool {
    let loops = source.split("{%").filter_map(|block| {
        let block = block.split("%}").next()?.trim_matches(['-', '+']).trim();
        let (_, over) = block.strip_prefix("for ")?.split_once(" in ")?;
        over.split(" if ").next()
    });
    let is_content = |over: &str| {
        let before = over.trim_end_matches([' ', ']', '\'', '"']).strip_suffix("content");
        before.is_some_and(|before| {
            before.chars().next_back().is_none_or(|last| !last.is_alphanumeric() && last != '_')
        })
    };
    loops.into_iter().any(is_content)
}
