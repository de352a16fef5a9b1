//! The text side of a GGUF file: a tokeniser built from its metadata.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use aqueduct_core::{Refusal, Sampling, TokenId, scaled_positions};
use aqueduct_gguf::{Field, Gguf, GgufError};
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, BpeBuilder, Merges, Vocab};
use tokenizers::normalizers::{NFC, Prepend, Replace, Sequence as Normalizers};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, NormalizerWrapper, Tokenizer};

use super::pretokenizer::{Family, family};
use super::template::TOOL_USE;
use super::{TextError, Vocabulary, ends, recommended};

/// SentencePiece, as `tokenizer.ggml.model` has it.
pub(super) const LLAMA: &str = "llama";
/// What leaves the spaces behind it alone where other special tokens do not.
const STRIPS_NOTHING: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];
/// Metadata is read in steps of this many bytes, doubled: the tensors behind it need not be.
const METADATA_STEP_BYTES: u64 = 16 << 20;
/// Gemma 4's tokeniser: merges of characters, as its tokenizer.json has them.
const GEMMA4: &str = "gemma4";
/// What Gemma's turns stand between.
const TURNS: [&str; 2] = ["<start_of_turn>", "<end_of_turn>"];
/// What SentencePiece writes for a space.
const SPACE: &str = "▁";

/// A token's role, as GGUF numbers it.
pub(super) mod kind {
    pub(in super::super) const NORMAL: i32 = 1;
    pub(in super::super) const UNKNOWN: i32 = 2;
    pub(in super::super) const CONTROL: i32 = 3;
    pub(in super::super) const USER_DEFINED: i32 = 4;
}

/// What a GGUF file says about its tokeniser.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufVocabulary {
    /// `gpt2` (byte-level merges), `llama` (SentencePiece scores) or `gemma4` (merges).
    pub model: String,
    /// How texts are cut into words; byte-level only.
    pub pre: Option<String>,
    /// Token i.
    pub tokens: Vec<String>,
    /// Score of token i; SentencePiece only.
    pub scores: Vec<f32>,
    /// Role of token i; empty when all are ordinary.
    pub kinds: Vec<i32>,
    /// Pairs, best first, as `left right`; where there are no scores.
    pub merges: Vec<String>,
    /// Begins a text.
    pub bos: Option<TokenId>,
    /// Tokens that end an answer, as far as the file says so by their ids.
    pub eos: Vec<TokenId>,
    /// Whether a text gets the begin token.
    pub adds_bos: Option<bool>,
    /// Whether a text gets a space before its first word; SentencePiece only.
    pub adds_space: Option<bool>,
    /// Whether spaces and ends of lines behind special tokens belong to them.
    pub strips_right: bool,
    /// Positions that the model was made for.
    pub max_positions: Option<u32>,
    /// The chat template.
    pub template: Option<String>,
    /// The chat template for conversations with tools.
    pub tool_template: Option<String>,
}

/// # Errors
/// A file that cannot be read, or whose tokeniser cannot be used.
pub(super) fn read(path: &Path) -> Result<Vocabulary, TextError> {
    let io = |source| TextError::Read { path: path.to_owned(), source };
    let invalid = |error: GgufError| TextError::invalid(path.display().to_string(), error);
    let file = File::open(path).map_err(io)?;
    let file_bytes = file.metadata().map_err(io)?.len();
    let mut prefix = Vec::new();
    let mut wanted = METADATA_STEP_BYTES;
    loop {
        let more = wanted - prefix.len() as u64;
        (&file).take(more).read_to_end(&mut prefix).map_err(io)?;
        match Gguf::parse_metadata(&prefix) {
            // What is longer than the file is damaged, and nothing more is read for it.
            Err(GgufError::Truncated { offset, needs, .. })
                if wanted < file_bytes && offset.saturating_add(needs) <= file_bytes =>
            {
                wanted *= 2;
            }
            gguf => {
                let gguf = gguf.map_err(invalid)?;
                let sampling = recommended::of_gguf(&gguf)?;
                let vocabulary = GgufVocabulary::from_gguf(&gguf)?.build()?;
                return Ok(Vocabulary { sampling, ..vocabulary });
            }
        }
    }
}

impl GgufVocabulary {
    /// # Errors
    /// A field of the wrong type, or one that is missing.
    pub fn from_gguf(gguf: &Gguf<'_>) -> Result<Self, TextError> {
        Self::collect(gguf).map_err(|error| TextError::invalid("tokenizer.ggml", error))
    }

    fn collect(gguf: &Gguf<'_>) -> Result<Self, GgufError> {
        let field = |name: &str| gguf.get(&format!("tokenizer.ggml.{name}"));
        let strs = |field: Field<'_, '_>| -> Result<Vec<String>, GgufError> {
            Ok(field.strs()?.iter().map(|text| (*text).to_owned()).collect())
        };
        let ends = ["eos_token_id", "eot_token_id", "eom_token_id"].into_iter().filter_map(field);
        // All bits of -1, which stands for none.
        let is_id = |id: &TokenId| *id != TokenId::MAX;
        let eos: Vec<TokenId> = ends.map(Field::u32).collect::<Result<_, _>>()?;
        let template = |suffix: &str| -> Result<Option<String>, GgufError> {
            let template = gguf.get(&format!("tokenizer.chat_template{suffix}"));
            Ok(template.map(Field::str).transpose()?.map(str::to_owned))
        };
        let family = gguf.get("general.architecture").map(Field::str).transpose()?;
        let of_model = |name: &str| gguf.get(&format!("{}.{name}", family?));
        let max_positions = of_model("context_length").map(Field::u32).transpose()?;
        let scaling = of_model("rope.scaling.type").map(Field::str).transpose()?;
        let factor = of_model("rope.scaling.factor").or_else(|| of_model("rope.scale_linear"));
        let factor = factor.map(Field::f64).transpose()?.unwrap_or(0.0);
        let original = of_model("rope.scaling.original_context_length");
        let original = original.map(Field::u32).transpose()?.map(f64::from);
        let scaled = |most| scaled_positions(most, scaling.unwrap_or("linear"), factor, original);
        let max_positions = match family {
            Some("gemma3" | "gpt-oss") => max_positions, // they tell how many scaling has made
            _ => max_positions.map(scaled),
        };
        let model = gguf.field("tokenizer.ggml.model")?.str()?.to_owned();
        Ok(Self {
            // So Phi 3's tokenizer.json has it, and no key says it.
            strips_right: model == LLAMA && family == Some("phi3"),
            model,
            pre: field("pre").map(|pre| pre.str().map(str::to_owned)).transpose()?,
            tokens: strs(gguf.field("tokenizer.ggml.tokens")?)?,
            scores: field("scores").map(Field::f32s).transpose()?.unwrap_or_default(),
            kinds: field("token_type").map(Field::i32s).transpose()?.unwrap_or_default(),
            merges: field("merges").map(strs).transpose()?.unwrap_or_default(),
            bos: field("bos_token_id").map(Field::u32).transpose()?.filter(is_id),
            eos: eos.into_iter().filter(is_id).collect(),
            adds_bos: field("add_bos_token").map(Field::bool).transpose()?,
            adds_space: field("add_space_prefix").map(Field::bool).transpose()?,
            max_positions,
            template: template("")?,
            tool_template: template(&format!(".{TOOL_USE}"))?,
        })
    }

    /// # Errors
    /// A kind of tokeniser that is not supported, or lists that contradict each other.
    pub fn build(mut self) -> Result<Vocabulary, TextError> {
        if self.model == LLAMA && self.tokens.len() > 2 {
            // As llama.cpp has it: files of 2023 do not say.
            self.bos = self.bos.or(Some(1));
            if self.eos.is_empty() {
                self.eos.push(2);
            }
        }
        self.validate()?;
        self.mark_turns();
        let (mut tokenizer, adds_bos) = match self.model.as_str() {
            "gpt2" => self.byte_level()?,
            LLAMA => (self.sentence_piece()?, true),
            GEMMA4 => {
                self.adds_bos = None; // whatever a file says, as in llama.cpp
                (self.of_characters(self.listed_merges()?, false)?, true)
            }
            other => {
                let bound = "gpt2, llama or gemma4";
                return Err(Refusal::new("tokenizer.ggml.model", other, bound).into());
            }
        };
        self.mark_special(&mut tokenizer)?;
        if let Some(bos) = self.bos.filter(|_| self.adds_bos.unwrap_or(adds_bos)) {
            let name = &self.tokens[bos as usize];
            tokenizer.with_post_processor(Some(begin_with(name, bos)?));
        }
        let model_tokens = Some(self.tokens.len() as u32);
        let eos = ends::of(&self);
        let Self { bos, max_positions, template, tool_template, .. } = self;
        // As llama.cpp has it: no text where there is no token.
        let special =
            ["bos_token", "eos_token"].map(|name| (name.to_owned(), String::new())).into();
        Ok(Vocabulary {
            tokenizer,
            bos,
            eos,
            model_tokens,
            max_positions,
            template,
            tool_template,
            special,
            sampling: Sampling::default(),
        })
    }

    fn validate(&self) -> Result<(), Refusal> {
        let tokens = self.tokens.len();
        let named = self.bos.iter().chain(&self.eos).find(|id| **id as usize >= tokens);
        if let Some(id) = named {
            return Err(Refusal::new(
                "bos_token_id or eos_token_id",
                id,
                format!("below {tokens}"),
            ));
        }
        for (field, len) in [("scores", self.scores.len()), ("token_type", self.kinds.len())] {
            if len != 0 && len != tokens {
                let bound = format!("{tokens}, one for each token");
                return Err(Refusal::new(format!("tokenizer.ggml.{field}"), len, bound));
            }
        }
        Ok(())
    }

    /// Some files of Gemma 3 have what turns stand between as ordinary tokens, of which no prompt
    /// would be made and with which no answer would end. No text has them, as llama.cpp knows too.
    fn mark_turns(&mut self) {
        let at = |name: &str| {
            let at = self.tokens.iter().position(|token| token == name)?;
            (self.kinds.get(at) == Some(&kind::NORMAL)).then_some(at)
        };
        for at in TURNS.map(at).into_iter().flatten() {
            self.kinds[at] = kind::CONTROL;
        }
    }

    fn byte_level(&self) -> Result<(Tokenizer, bool), TextError> {
        let Family { pretokenizer, composes, ignores_merges, adds_bos } =
            family(self.pre.as_deref().unwrap_or("default"))?;
        let bpe = BPE::builder().vocab_and_merges(self.vocab(), self.listed_merges()?);
        let mut tokenizer = tokenizer(bpe.ignore_merges(ignores_merges))?;
        tokenizer.with_pre_tokenizer(Some(pretokenizer));
        tokenizer.with_decoder(Some(ByteLevel::new(false, true, true)));
        if composes {
            tokenizer.with_normalizer(Some(NFC)).map_err(build_error)?;
        }
        Ok((tokenizer, adds_bos))
    }

    fn listed_merges(&self) -> Result<Merges, TextError> {
        // A piece may itself begin with a space: the separator is the first one after that.
        let pair = |merge: &String| {
            let at = merge.char_indices().skip(1).find(|(_, c)| *c == ' ')?.0;
            Some((merge[..at].to_owned(), merge[at + 1..].to_owned()))
        };
        let merges = self.merges.iter().map(pair).collect::<Option<Merges>>();
        merges.ok_or_else(|| {
            TextError::invalid("tokenizer.ggml.merges", "an entry is not two pieces and a space")
        })
    }

    fn sentence_piece(&self) -> Result<Tokenizer, TextError> {
        if self.scores.is_empty() {
            return Err(TextError::invalid("tokenizer.ggml.scores", "missing"));
        }
        self.of_characters(self.merges_by_score(), self.adds_space.unwrap_or(true))
    }

    /// Pieces of characters, among which a mark stands for a space, and of bytes where there is no
    /// piece.
    fn of_characters(&self, merges: Merges, adds_space: bool) -> Result<Tokenizer, TextError> {
        let mut bpe = BPE::builder()
            .vocab_and_merges(self.vocab(), merges)
            .byte_fallback(true)
            .fuse_unk(true);
        if let Some(unknown) = self.kinds.iter().position(|kind| *kind == kind::UNKNOWN) {
            bpe = bpe.unk_token(self.tokens[unknown].clone());
        }
        let mut tokenizer = tokenizer(bpe)?;
        let mut normalizers: Vec<NormalizerWrapper> = Vec::new();
        if adds_space {
            normalizers.push(Prepend::new(SPACE.to_owned()).into());
        }
        normalizers.push(Replace::new(" ", SPACE).map_err(build_error)?.into());
        tokenizer.with_normalizer(Some(Normalizers::new(normalizers))).map_err(build_error)?;
        let mut decoders = vec![
            Replace::new(SPACE, " ").map_err(build_error)?.into(),
            ByteFallback::new().into(),
            Fuse::new().into(),
        ];
        if adds_space {
            decoders.push(Strip::new(' ', 1, 0).into());
        }
        tokenizer.with_decoder(Some(Decoders::new(decoders)));
        Ok(tokenizer)
    }

    fn vocab(&self) -> Vocab {
        (0..).zip(&self.tokens).map(|(id, token)| (token.clone(), id)).collect()
    }

    /// SentencePiece joins the pair whose whole has the best score: as a list of merges, every
    /// way to make each token, in the order of scores.
    fn merges_by_score(&self) -> Merges {
        let vocab = self.vocab();
        let mut merges = Vec::new();
        for (token, score) in self.tokens.iter().zip(&self.scores) {
            let mut ways: Vec<_> = token
                .char_indices()
                .skip(1)
                .map(|(at, _)| token.split_at(at))
                .filter_map(|(left, right)| {
                    Some((*vocab.get(left)?, *vocab.get(right)?, left, right))
                })
                .collect();
            ways.sort_unstable();
            merges.extend(ways.into_iter().map(|(_, _, left, right)| (*score, left, right)));
        }
        merges.sort_by(|a, b| b.0.total_cmp(&a.0));
        merges.into_iter().map(|(_, left, right)| (left.to_owned(), right.to_owned())).collect()
    }

    fn mark_special(&self, tokenizer: &mut Tokenizer) -> Result<(), TextError> {
        let of = |wanted: &'static [i32], special: bool| {
            let all = self.tokens.iter().zip(&self.kinds);
            all.filter(move |(token, kind)| wanted.contains(kind) && !token.is_empty()).map(
                move |(token, _)| {
                    let strips = self.strips_right && !STRIPS_NOTHING.contains(&token.as_str());
                    AddedToken::from(token.clone(), special).normalized(false).rstrip(strips)
                },
            )
        };
        let special = of(&[kind::CONTROL, kind::UNKNOWN], true);
        tokenizer.add_special_tokens(special).map_err(build_error)?;
        tokenizer.add_tokens(of(&[kind::USER_DEFINED], false)).map_err(build_error)?;
        Ok(())
    }
}

fn tokenizer(bpe: BpeBuilder) -> Result<Tokenizer, TextError> {
    Ok(Tokenizer::new(bpe.build().map_err(build_error)?))
}

fn begin_with(name: &str, bos: TokenId) -> Result<TemplateProcessing, TextError> {
    let pieces = vec![format!("{name}:0"), "$A:0".to_owned()];
    let pair = vec![format!("{name}:0"), "$A:0".to_owned(), "$B:1".to_owned()];
    TemplateProcessing::builder()
        .try_single(pieces)
        .map_err(build_error)?
        .try_pair(pair)
        .map_err(build_error)?
        .special_tokens(vec![(name.to_owned(), bos)])
        .build()
        .map_err(build_error)
}

fn build_error(error: impl std::fmt::Display) -> TextError {
    TextError::invalid("tokenizer.ggml", error)
}
