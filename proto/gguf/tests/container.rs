//! What is written is read; what is wrong is refused by offset or key; nothing panics.

use aqueduct_gguf::write::Writer;
use aqueduct_gguf::{Array, Gguf, GgufError, TENSOR_TYPES, Value};
use proptest::prelude::*;

fn sample() -> Writer {
    let nested: Vec<u8> = [9u32.to_le_bytes(), 1u32.to_le_bytes(), [0; 4], 0u32.to_le_bytes()]
        .concat()
        .into_iter()
        .chain(2u64.to_le_bytes())
        .chain([7, 8])
        .collect();
    Writer::new()
        .str("general.architecture", "llama")
        .u32("llama.block_count", 2)
        .f32("llama.rope.freq_base", 10_000.0)
        .bool("tokenizer.ggml.add_bos_token", true)
        .strs("tokenizer.ggml.tokens", &["<s>", "é", ""])
        .i32s("tokenizer.ggml.token_type", &[3, -1, 1])
        .f32s("tokenizer.ggml.scores", &[0.5, -2.0, 0.0])
        .raw("deep", 9, &nested)
        .tensor("a.weight", &[2, 3], 0, &[1; 24])
        .tensor("b.weight", &[32], 8, &[2; 34])
        .tensor("nothing", &[0, 7], 0, &[])
}

#[test]
fn what_is_written_is_read() {
    let file = sample().finish();
    let gguf = Gguf::parse(&file).unwrap();
    let field = |key| gguf.field(key).unwrap();
    assert_eq!(field("general.architecture").str(), Ok("llama"));
    assert_eq!(field("llama.block_count").u32(), Ok(2));
    assert_eq!(field("llama.block_count").u64(), Ok(2));
    assert_eq!(field("llama.rope.freq_base").f32(), Ok(10_000.0));
    assert_eq!(field("tokenizer.ggml.add_bos_token").bool(), Ok(true));
    assert_eq!(field("tokenizer.ggml.tokens").strs(), Ok(["<s>", "é", ""].as_slice()));
    assert_eq!(field("tokenizer.ggml.token_type").i32s(), Ok(vec![3, -1, 1]));
    assert_eq!(field("tokenizer.ggml.scores").f32s(), Ok(vec![0.5, -2.0, 0.0]));
    let Value::Array(Array::Arrays(inner)) = field("deep").value else { panic!("not nested") };
    assert_eq!(inner[0].len(), 2);
    assert_eq!(gguf.fields().count(), 8);

    let tensor = gguf.tensor("b.weight").unwrap();
    assert_eq!((tensor.ty.name, tensor.bytes), ("Q8_0", [2; 34].as_slice()));
    assert_eq!(gguf.tensor("a.weight").unwrap().elements(), 6);
    assert_eq!(gguf.tensor("nothing").unwrap().bytes, &[]);
    assert_eq!(gguf.tensors().count(), 3);
    assert!(gguf.tensor("c.weight").is_none());
}

#[test]
fn getters_name_the_key() {
    let file = sample().finish();
    let gguf = Gguf::parse(&file).unwrap();
    let check = |seen: GgufError, want: &str| assert_eq!(seen.to_string(), want);
    check(gguf.field("llama.none").unwrap_err(), "metadata key llama.none is missing");
    check(
        gguf.field("general.architecture").unwrap().u32().unwrap_err(),
        "metadata key general.architecture is \"llama\": \
         must be an integer between 0 and 2^32 - 1",
    );
    check(
        gguf.field("tokenizer.ggml.token_type").unwrap().u32s().unwrap_err(),
        "metadata key tokenizer.ggml.token_type is an array of 3: \
         must be an array of integers between 0 and 2^32 - 1",
    );
}

#[test]
fn a_number_may_be_told_for_every_layer() {
    let writer = Writer::new().u32("one", 8).i32s("same", &[8, 8, 8]).i32s("other", &[8, 8, 4]);
    let file = writer.i32s("none", &[]).i32s("minus", &[-8, -8]).str("text", "8").finish();
    let gguf = Gguf::parse(&file).unwrap();
    let read = |key: &str| gguf.field(key).unwrap().same_u32();
    assert_eq!((read("one"), read("same")), (Ok(8), Ok(8)));
    for (key, says) in [
        ("other", "is an array of 3: must be the same integer"),
        ("none", "is an array of 0"),
        ("minus", "between 0 and 2^32 - 1 for every layer"),
        ("text", "must be an integer between 0 and 2^32 - 1"),
    ] {
        let error = read(key).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// The error text of a file that must be refused.
fn refusal(file: &[u8]) -> String {
    Gguf::parse(file).expect_err("must be refused").to_string()
}

#[test]
fn refuses_what_contradicts_the_format() {
    let check = |file: Vec<u8>, part: &str| {
        let error = refusal(&file);
        assert!(error.contains(part), "{error:?} should say {part:?}");
    };
    check(b"{\"a\": 1}".to_vec(), "not a GGUF file");
    check(b"GG".to_vec(), "not a GGUF file");
    check(b"GGUF\x01\0\0\0".to_vec(), "version 1 is not supported");
    check(b"GGUF\0\0\0\x03".to_vec(), "version 50331648 is not supported");
    check([b"GGUF\x03\0\0\0".as_slice(), &[255; 16]].concat(), "tensor count needs");
    check(Writer::new().u32("a", 1).u32("a", 1).finish(), "metadata key a appears twice");
    check(Writer::new().raw("a", 99, &[0; 64]).finish(), "value type 99 of a is unknown");
    check(Writer::new().raw("a", 7, &[2; 64]).finish(), "bool 2 of a");
    check(Writer::new().raw("a", 8, &u64::MAX.to_le_bytes()).finish(), "a needs 1844674407");
    let deep = [9u32.to_le_bytes(), 1u32.to_le_bytes(), [0; 4]].concat().repeat(9);
    check(Writer::new().raw("a", 9, &deep).finish(), "array depth of a = 5: must be at most 4");
    let huge = [5u32.to_le_bytes().as_slice(), &(1u64 << 62).to_le_bytes()].concat();
    check(Writer::new().raw("a", 9, &huge).finish(), "a needs");
    check(Writer::new().u32("general.alignment", 24).finish(), "general.alignment is 24");
    let f32s = |name: &str, dims: &[u64]| Writer::new().tensor(name, dims, 0, &[0; 4]);
    check(f32s("t", &[1]).tensor("t", &[1], 0, &[0; 4]).finish(), "tensor t appears twice");
    check(f32s("t", &[1, 1, 1, 1, 1]).finish(), "dimensions of tensor t = 5: must be at most 4");
    check(f32s("t", &[u64::MAX, 2]).finish(), "overflows");
    check(f32s("t", &[9]).finish(), "tensor t at 0 needs 36 bytes, 32 are left");
    check(Writer::new().tensor("t", &[1], 77, &[0; 4]).finish(), "type 77 of tensor t is unknown");
    check(Writer::new().tensor("t", &[16, 2], 8, &[0; 34]).finish(), "rows of 16 elements");
}

#[test]
fn tensors_do_not_share_bytes() {
    let mut file =
        Writer::new().tensor("a", &[16], 0, &[0; 64]).tensor("b", &[8], 0, &[0; 32]).finish();
    // The index entry of b ends in its offset, 64; the data begins at the next multiple of 32.
    let at = file.windows(8).rposition(|word| word == 64u64.to_le_bytes()).unwrap();
    file[at] = 32;
    assert!(refusal(&file).contains("tensors a and b overlap"));
}

#[test]
fn every_type_has_its_code_once() {
    assert!(TENSOR_TYPES.windows(2).all(|pair| pair[0].code < pair[1].code));
}

#[test]
fn every_truncation_is_refused() {
    // The last tensor with bytes ends at 34 of its 64; what follows it is padding.
    let file = sample().finish();
    for len in 0..file.len() - 30 {
        refusal(&file[..len]);
    }
}

/// Reads everything that a file offers, so that a lazy accessor cannot hide a panic.
fn read_all(file: &[u8]) {
    let Ok(gguf) = Gguf::parse(file) else { return };
    for field in gguf.fields() {
        let _ = (field.u32(), field.f32(), field.bool(), field.str(), field.strs());
        let _ = (field.i32s(), field.u32s(), field.f32s(), field.value.to_string());
    }
    let bytes: usize = gguf.tensors().map(|tensor| tensor.bytes.len()).sum();
    assert!(bytes <= file.len(), "tensors are larger than the file they are in");
}

proptest! {
    #[test]
    fn random_bytes_never_panic(tail in proptest::collection::vec(any::<u8>(), 0..400)) {
        read_all(&tail);
        let header = b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0";
        read_all(&[header.as_slice(), &tail].concat());
    }

    #[test]
    fn flipped_bits_never_panic(
        flips in proptest::collection::vec((any::<usize>(), 0u8..8), 1..6),
    ) {
        let mut file = sample().finish();
        for (at, bit) in flips {
            let at = at % file.len();
            file[at] ^= 1 << bit;
        }
        read_all(&file);
    }
}
