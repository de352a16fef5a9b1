//! A model's text side: tokeniser, end tokens and chat template in one.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use aqueduct_core::{Constraint, Form, Refusal, Sampling, TokenBytes, TokenId, limits};
use aqueduct_gguf::ModelFiles;
use tokenizers::Tokenizer;

use super::parts::{PART_BYTES, Parts, around};
use super::pieces::Pieces;
use super::{ChatTemplate, Detokenizer, Start, TextError, gguf, hf};
use crate::turns::may_compile;

/// Tokens that are counted of a text however short this model's prompts are.
const COUNTED_TOKENS: u32 = 1 << 20;

/// What a model file says about text, in whichever container it came.
pub struct Vocabulary {
    /// The tokeniser.
    pub tokenizer: Tokenizer,
    /// Begins a text, where the model has such a token.
    pub bos: Option<TokenId>,
    /// Tokens that end an answer; the first one is the template's `eos_token`.
    pub eos: Vec<TokenId>,
    /// Rows of the model's embedding, if the file says; larger ids are refused.
    pub model_tokens: Option<u32>,
    /// Positions that the model was made for, if the file says; prompts must fit them.
    pub max_positions: Option<u32>,
    /// The chat template, if the model has one.
    pub template: Option<String>,
    /// The one for conversations with tools, if there is another.
    pub tool_template: Option<String>,
    /// Tokens that templates may name besides `bos_token` and `eos_token`, by name and text; or
    /// these, where the model has none and its templates are told so.
    pub special: Vec<(String, String)>,
    /// How its makers would have tokens drawn, where a caller does not say.
    pub sampling: Sampling,
}

/// Text in, tokens out, and back.
pub struct TextModel {
    tokenizer: Tokenizer,
    /// How long texts are encoded, if not whole.
    parts: Option<Parts>,
    pieces: Pieces,
    longest_piece: usize,
    eos: Vec<TokenId>,
    model_tokens: Option<u32>,
    template: ChatTemplate,
    sampling: Sampling,
    prompt_tokens_max: u32,
    max_positions: u32,
    /// What grammars are compiled for; made when the first one comes.
    spelling: OnceLock<Result<Spelling, Refusal>>,
}

/// The vocabulary as grammars see it.
struct Spelling {
    bytes: Arc<TokenBytes>,
    vocabulary: aqueduct_grammar::Vocabulary,
}

impl TextModel {
    /// Reads a Hugging Face folder or a GGUF file, of whose parts the first has the tokeniser.
    ///
    /// # Errors
    /// A file that is missing or broken, or a tokeniser of a kind that is not supported.
    pub fn load(path: &Path) -> Result<Self, TextError> {
        Self::new(match ModelFiles::find(path)? {
            ModelFiles::Folder => hf::read(path)?,
            ModelFiles::Gguf(files) => gguf::read(&files[0])?,
        })
    }

    /// # Errors
    /// A decoder or a template that is not supported.
    pub fn new(vocabulary: Vocabulary) -> Result<Self, TextError> {
        let Vocabulary { tokenizer, bos, eos, model_tokens, max_positions, .. } = vocabulary;
        let pieces = Pieces::new(&tokenizer)?;
        let name = |id: Option<TokenId>| id.and_then(|id| tokenizer.id_to_token(id));
        let (bos, eos_text) = (name(bos), name(eos.first().copied()));
        let template = ChatTemplate::new(vocabulary.template, bos, eos_text)?;
        let template = template.with_special(vocabulary.special);
        let template = template.with_tool_use(vocabulary.tool_template)?;
        let template = template.with_tokens(|name| tokenizer.token_to_id(name).is_some());
        let longest_piece = pieces.longest().max(1);
        let prompt_tokens_max =
            max_positions.filter(|most| *most > 0).unwrap_or(limits::PROMPT_TOKENS_MAX);
        Ok(Self {
            parts: Parts::new(&tokenizer),
            tokenizer,
            pieces,
            longest_piece,
            eos,
            model_tokens,
            template,
            sampling: vocabulary.sampling,
            max_positions: prompt_tokens_max,
            prompt_tokens_max,
            spelling: OnceLock::new(),
        })
    }

    /// Tokens for which the model has positions behind `tokens` of them.
    pub fn tokens_left(&self, tokens: u32) -> u32 {
        self.max_positions.saturating_sub(tokens)
    }

    /// How tokens are drawn where a caller does not say: what the model's files recommend.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Has `sampling` instead of what the model's files recommend.
    #[must_use]
    pub fn with_sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = sampling;
        self
    }

    /// Refuses prompts of more than `prompt_tokens` from now on.
    #[must_use]
    pub fn with_prompt_tokens_max(mut self, prompt_tokens: u32) -> Self {
        self.prompt_tokens_max = prompt_tokens;
        self
    }

    /// The tokens of `text`. `add_special` puts the model's begin token before them, which a
    /// rendered chat already has.
    ///
    /// # Errors
    /// A text that is too long, or one that needs tokens the model does not have.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<TokenId>, Refusal> {
        self.encode_within(text, add_special, self.prompt_tokens_max)
    }

    /// The same of a text that may be longer than this model's prompts, for whoever wants to know
    /// by how much.
    ///
    /// # Errors
    /// Those of `encode`, for what has more than [`Self::counted_tokens_max`].
    pub fn encode_any(&self, text: &str, add_special: bool) -> Result<Vec<TokenId>, Refusal> {
        self.encode_within(text, add_special, self.counted_tokens_max())
    }

    /// Tokens that are counted of what may be longer than this model's prompts.
    pub fn counted_tokens_max(&self) -> u32 {
        self.prompt_tokens_max.max(COUNTED_TOKENS)
    }

    fn encode_within(
        &self,
        text: &str,
        add_special: bool,
        tokens_max: u32,
    ) -> Result<Vec<TokenId>, Refusal> {
        // Most overlong texts are refused before they cost any work: no token is longer than
        // the longest, and a normaliser shrinks a text to a third at the very most.
        let bytes_max = (tokens_max as usize).saturating_mul(self.longest_piece * 3);
        if text.len() > bytes_max.min(limits::PROMPT_BYTES_MAX) {
            let bound = format!("at most {tokens_max}");
            let value = format!("those of {} bytes", text.len());
            return Err(Refusal::new("prompt_tokens", value, bound));
        }
        let tokens = match &self.parts {
            Some(parts) if text.len() > PART_BYTES => {
                let most = tokens_max as usize;
                let encoded = parts.encode(&self.tokenizer, (text, PART_BYTES), add_special, most);
                if encoded.as_ref().is_ok_and(|tokens| tokens.len() > most) {
                    let bound = format!("at most {most}");
                    return Err(Refusal::new("prompt_tokens", format!("over {most}"), bound));
                }
                encoded
            }
            _ => {
                self.tokenizer.encode_fast(text, add_special).map(|whole| whole.get_ids().to_vec())
            }
        };
        let tokens = tokens
            .map_err(|error| Refusal::new("prompt", error, "text that the tokeniser knows"))?;
        self.check_within(&tokens, tokens_max)?;
        Ok(tokens)
    }

    /// The tokens that `encode` puts before a text when it may add special ones.
    ///
    /// # Errors
    /// Those of `encode`.
    pub fn begin(&self) -> Result<Vec<TokenId>, Refusal> {
        let with = self.encode("a", true)?;
        let without = self.encode("a", false)?;
        Ok(around(&with, &without).map_or(Vec::new(), |(before, _)| before.to_vec()))
    }

    /// Checks a prompt that came as tokens.
    ///
    /// # Errors
    /// Too many tokens, or one outside the vocabulary.
    pub fn check(&self, tokens: &[TokenId]) -> Result<(), Refusal> {
        self.check_within(tokens, self.prompt_tokens_max)
    }

    /// The same where there may be so many.
    pub(crate) fn check_within(&self, tokens: &[TokenId], tokens_max: u32) -> Result<(), Refusal> {
        if tokens.len() > tokens_max as usize {
            let bound = format!("at most {tokens_max}");
            return Err(Refusal::new("prompt_tokens", tokens.len(), bound));
        }
        let vocab = self.vocab();
        match tokens.iter().find(|token| **token >= vocab) {
            Some(token) => {
                Err(Refusal::new("prompt", token, format!("below the vocabulary's {vocab}")))
            }
            None => Ok(()),
        }
    }

    /// The text of `tokens`, without special tokens.
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        let mut detokenizer = self.detokenizer(Start::Text);
        let mut text: String =
            tokens.iter().map(|token| self.push(&mut detokenizer, *token)).collect();
        text += &detokenizer.finish();
        text
    }

    /// The text of `tokens` with special tokens by their names, as a prompt has them.
    pub fn spell(&self, tokens: &[TokenId], start: Start) -> String {
        let bytes: Vec<u8> =
            tokens.iter().flat_map(|token| self.token_bytes(*token)).copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let strips = start == Start::Text && self.pieces.strips_first_space();
        text.strip_prefix(' ').filter(|_| strips).unwrap_or(&text).to_owned()
    }

    /// A detokeniser for one completion.
    pub fn detokenizer(&self, start: Start) -> Detokenizer {
        Detokenizer::new(&self.pieces, start)
    }

    /// The text that `token` completes.
    pub fn push(&self, detokenizer: &mut Detokenizer, token: TokenId) -> String {
        detokenizer.push(&self.pieces, token)
    }

    /// The bytes of one token by itself, special tokens by their name; empty for an id outside
    /// the vocabulary.
    pub fn token_bytes(&self, token: TokenId) -> &[u8] {
        self.pieces.bytes(token)
    }

    /// Whether the token steers the model and is no part of any text.
    pub fn is_special(&self, token: TokenId) -> bool {
        self.pieces.is_special(token)
    }

    /// `text` as grammars of llguidance's Lark have it: names of tokens that are no text, which
    /// stand between `<` and `>` or `[` and `]`, as those tokens. One that ends answers is left
    /// out: with it an answer ends where a grammar may.
    pub(crate) fn in_grammar(&self, text: &str) -> String {
        let special =
            |name: &str| self.tokenizer.token_to_id(name).filter(|token| self.is_special(*token));
        let named = |(start, close): (usize, char)| {
            let end = start + text[start..].find(close)? + close.len_utf8();
            Some((start..end, special(&text[start..end])?))
        };
        let opens = text.char_indices().filter_map(|(at, c)| match c {
            '<' => Some((at, '>')),
            '[' => Some((at, ']')),
            _ => None,
        });
        let (mut parts, mut from) = (Vec::new(), 0);
        let literal = |text: &str| serde_json::Value::from(text).to_string();
        for (name, token) in opens.filter_map(named) {
            if from < name.start {
                parts.push(literal(&text[from..name.start]));
            }
            if !self.eos.contains(&token) {
                parts.push(format!("<[{token}]>"));
            }
            from = name.end;
        }
        if from < text.len() {
            parts.push(literal(&text[from..]));
        }
        parts.join(" ")
    }

    /// What makes answers be of `form`, whose grammar comes from `field`.
    ///
    /// # Errors
    /// A grammar that is too costly, is not understood or allows no answer; a vocabulary that is
    /// too large.
    pub fn constraint(&self, field: &str, form: Form) -> Result<Constraint, Refusal> {
        if form.grammar.is_some() {
            self.may_compile(field)?;
        }
        let spelling = self.spelling.get_or_init(|| self.spelling()).as_ref();
        let Spelling { bytes, vocabulary } = spelling.map_err(Clone::clone)?;
        vocabulary.compile(field, &form)?;
        Ok(Constraint { form, vocabulary: bytes.clone() })
    }

    /// Says, where this thread's turn is not for compiling grammars, that one is wanted.
    ///
    /// # Errors
    /// It is not: nobody sees why.
    pub(crate) fn may_compile(&self, field: &str) -> Result<(), Refusal> {
        let refusal = || Refusal::new(field, "a grammar", "compiled on a turn for that");
        may_compile().then_some(()).ok_or_else(refusal)
    }

    fn spelling(&self) -> Result<Spelling, Refusal> {
        let spelled = |token: TokenId| {
            let bytes = self.token_bytes(token);
            match self.is_special(token) {
                _ if self.eos.contains(&token) => Vec::new(),
                true => [&[TokenBytes::MARK], bytes].concat(),
                false => bytes.to_vec(),
            }
        };
        let words: Vec<Vec<u8>> = (0..self.pieces.len() as TokenId).map(spelled).collect();
        let bytes = TokenBytes::of(words.iter().map(Vec::as_slice));
        bytes.validate()?;
        let vocabulary = aqueduct_grammar::Vocabulary::new(&bytes)?;
        Ok(Spelling { bytes: Arc::new(bytes), vocabulary })
    }

    /// Ids that a prompt may have are below this: the embedding's rows if the model file says
    /// how many there are, otherwise the tokeniser's ids.
    pub fn vocab(&self) -> u32 {
        self.model_tokens.unwrap_or(self.pieces.len() as u32)
    }

    /// Tokens that end an answer.
    pub fn eos(&self) -> &[TokenId] {
        &self.eos
    }

    /// Tokens that end an answer: the model's own, unless they are ignored, and `others`, which
    /// come from `field`.
    ///
    /// # Errors
    /// More than a request may have; one outside the vocabulary.
    pub fn ends(
        &self,
        ignore_own: bool,
        field: &str,
        others: &[TokenId],
    ) -> Result<Vec<TokenId>, Refusal> {
        let vocab = self.vocab();
        if let Some(token) = others.iter().find(|token| **token >= vocab) {
            return Err(Refusal::new(field, token, format!("below the vocabulary's {vocab}")));
        }
        let own = if ignore_own { &[] } else { self.eos() };
        let new = others.iter().filter(|token| !own.contains(token));
        let ends: Vec<TokenId> = own.iter().chain(new).copied().collect();
        let most = limits::EOS_TOKENS_MAX;
        Refusal::unless_within(&format!("end tokens with {field}"), ends.len(), 0, most)?;
        Ok(ends)
    }

    /// The longest prompt that is accepted.
    pub fn prompt_tokens_max(&self) -> u32 {
        self.prompt_tokens_max
    }

    /// How a conversation becomes a prompt.
    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }
}
