//! Files that are read, and those that are refused and in which words.

use proptest::prelude::*;

use super::write::{Writer, archive, stored};
use super::*;

/// What a file of these bytes is refused for must say all of `parts`.
fn check_refused(file: &[u8], parts: &[&str]) {
    let error = TorchFile::parse(file).expect_err(&format!("{parts:?}")).to_string();
    for part in parts {
        assert!(error.contains(part), "{error:?} should say {part:?}");
    }
}

/// The same of a pickle, beside a storage of 16 bytes.
fn check_pickle(pickle: &[u8], parts: &[&str]) {
    check_refused(&archive(pickle, &[&[0; 16]]), parts);
}

/// The same of a tensor that is a part of a storage, which has eight f32 in all.
fn check_view(offset: i32, shape: &[u32], strides: &[u32], parts: &[&str]) {
    let file = eight().view("v", ("FloatStorage", 0, 8), offset, shape, strides).finish();
    check_refused(&file, &[&["tensor v: "], parts].concat());
}

fn eight() -> Writer {
    let bytes: Vec<u8> = (0..8).flat_map(|i| (i as f32).to_le_bytes()).collect();
    Writer::new().tensor("a.weight", "FloatStorage", &[2, 4], &bytes)
}

/// A pickle of one tensor, made of a storage, an offset and what `arguments` says.
fn tensor(arguments: &[u8]) -> Vec<u8> {
    let parts: [&[u8]; 5] = [
        b"\x80\x04}\x8c\x01actorch._utils\n_rebuild_tensor_v2\n(",
        b"(\x8c\x07storagectorch\nFloatStorage\n\x8c\x010\x8c\x03cpuK\x04tQ",
        b"K\x00",
        arguments,
        b"tRs.",
    ];
    parts.concat()
}

#[test]
fn tensors_lie_where_the_pickle_says() {
    let four = |of: std::ops::Range<u8>| -> Vec<u8> {
        of.flat_map(|i| f32::from(i).to_le_bytes()).collect()
    };
    let whole = ("FloatStorage", 0, 8);
    let bytes = eight()
        .view("row", whole, 4, &[1, 4], &[9, 1])
        .view("same", whole, 0, &[2, 4], &[4, 1])
        .view("one", whole, 7, &[], &[])
        .view("none", whole, 0, &[0, 1 << 30, 4], &[0, 0, 0])
        .view("turned", whole, 0, &[4, 2], &[1, 4])
        .view("wide", whole, 3, &[1 << 20, 1 << 10], &[0, 0])
        .tensor("ids", "LongStorage", &[1], &[7; 8])
        .tensor("mask", "BoolStorage", &[3], &[1, 0, 1])
        .finish();
    let file = TorchFile::parse(&bytes).unwrap();
    let check = |name: &str, dtype: &str, shape: &[usize], data: Data<'_>| {
        let tensor = file.tensor(name).unwrap();
        assert_eq!((tensor.dtype.name, &*tensor.shape), (dtype, shape), "{name}");
        assert_eq!(tensor.data, data, "{name}");
    };
    check("a.weight", "F32", &[2, 4], Data::InOrder(&four(0..8)));
    check("row", "F32", &[1, 4], Data::InOrder(&four(4..8)));
    check("same", "F32", &[2, 4], Data::InOrder(&four(0..8)));
    check("one", "F32", &[], Data::InOrder(&four(7..8)));
    check("none", "F32", &[0, 1 << 30, 4], Data::InOrder(&[]));
    check("turned", "F32", &[4, 2], Data::Strided(vec![1, 4]));
    check("wide", "F32", &[1 << 20, 1 << 10], Data::Strided(vec![0, 0]));
    check("ids", "I64", &[1], Data::InOrder(&[7; 8]));
    check("mask", "BOOL", &[3], Data::InOrder(&[1, 0, 1]));
    assert_eq!(file.tensors().count(), 9);
}

#[test]
fn tensors_beyond_their_storage_are_refused() {
    let lie = "must lie in the 8 elements of storage \"data/0\"";
    check_view(1, &[2, 4], &[4, 1], &["offset 1, shape [2, 4], strides [4, 1]: ", lie]);
    check_view(0, &[3, 3], &[3, 1], &[lie]);
    check_view(0, &[2, 2], &[7, 1], &[lie]);
    check_view(8, &[], &[], &[lie]);
    let huge = [i32::MAX as u32; 4];
    check_view(0, &huge, &[0; 4], &[lie]);
    check_view(0, &[2; 4], &huge, &[lie]);
    check_view(-1, &[1], &[1], &["offset -1, shape [1]", "none may be negative"]);
    check_view(0, &[u32::MAX], &[1], &["shape [-1]", "none may be negative"]);
    check_view(0, &[2, 4], &[4], &["shape [2, 4] has strides [4]: must be as many"]);
    check_view(0, &[1; 9], &[1; 9], &["9 dimensions: must be at most 8"]);
    let of = |storage| eight().view("v", storage, 0, &[1], &[1]).finish();
    let refused = |storage, what: &str| check_refused(&of(storage), &["tensor v: ", what]);
    refused(("FloatStorage", 1, 8), "its storage \"data/1\" is not in the file");
    refused(("FloatStorage", 0, 9), "has 32 bytes: must be 9 elements of 4");
    refused(("DoubleStorage", 0, 8), "has 32 bytes: must be 8 elements of 8");
    refused(("HalfStorage", 0, u32::MAX), "has 32 bytes: must be -1 elements of 2");
    let twice = eight().tensor("a.weight", "FloatStorage", &[0], &[]).finish();
    check_refused(&twice, &["tensor a.weight: appears twice"]);
}

#[test]
fn nothing_but_tensors_is_named() {
    let named = |name: &str| format!("names {name:?}, which no tensor is made of, and nothing");
    check_pickle(b"\x80\x02cos\nsystem\n\x8c\x02ls\x85R.", &[&named("os.system"), "byte 2: "]);
    check_pickle(b"\x80\x04\x8c\x05posix\x8c\x06system\x93.", &[&named("posix.system")]);
    check_pickle(b"cbuiltins\neval\n.", &[&named("builtins.eval")]);
    check_pickle(b"ctorch\nload\n.", &[&named("torch.load")]);
    check_pickle(b"ctorch\n\n.", &[&named("torch.")]);
    check_pickle(b"c\x1b[2J\n\n.", &["names \"\\u{1b}[2J.\""]);
    check_pickle(b"c__torch__\nModel\n.", &[&named("__torch__.Model")]);
    check_pickle(b"K\x01K\x02\x93.", &["names something by what is no text"]);
    let long = [b"c".as_slice(), &[b'a'; 300], b"\nb\n."].concat();
    check_pickle(&long, &["a name that does not end within 256 bytes"]);
    // Instructions that make objects, run code by numbers, or are unknown.
    for code in [0x81, 0x92, b'o', b'i', 0x82, b'P', b'0', b'2', b'1', b']', b'G', 0xff] {
        let what = format!("instruction {code:#04x}, which no list of tensors needs");
        check_pickle(&[0x80, 2, b'N', code], &[&what]);
    }
}

#[test]
fn pickles_are_read_within_bounds() {
    check_pickle(b"", &["byte 0: needs 1 bytes, 0 are left"]);
    check_pickle(b"\x80\x02X\xff\xff\xff\xff", &["needs 4294967295 bytes, 0 are left"]);
    check_pickle(b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffa", &["needs 18446744073709551615 bytes"]);
    check_pickle(b"\x8c\x01\xff.", &["text that is not UTF-8"]);
    check_pickle(b"\x80\x01N.", &["protocol 1: must be from 2 to 5"]);
    check_pickle(b"\x8a\x09123456789.", &["an integer of 9 bytes: must be at most 8"]);
    check_pickle(&[b'('; 65], &["more than 64 values inside one another"]);
    check_pickle(&[b'N'; 70_000], &["a stack of more than 65536 values"]);
    check_pickle(b"Nq\x01.", &["remembers value 1: must be at most 0"]);
    check_pickle(b"Nr\xff\xff\xff\xff.", &["remembers value 4294967295: must be at most 0"]);
    check_pickle(b"Nq\x00h\x01.", &["takes value 1 of 1 that it remembers"]);
    let endless = [b"N".as_slice(), &vec![0x94; (1 << 22) + 1]].concat();
    check_pickle(&endless, &["makes more than 4194304 values"]);
    let deep = [b"N".as_slice(), &vec![0x85; (1 << 22) + 1]].concat();
    check_pickle(&deep, &["makes more than 4194304 values"]);
    let long = vec![b'N'; (32 << 20) + 1];
    check_pickle(&long, &["33554433 bytes: must be at most 33554432"]);
    // Deep, and within bounds: nothing recurses.
    let deep = [b"N".as_slice(), &vec![0x85; 1 << 20], b"."].concat();
    check_pickle(&deep, &["ends with something else than one dictionary"]);
}

#[test]
fn values_are_where_they_belong() {
    check_pickle(b"R", &["takes a value where there is none"]);
    check_pickle(b"N(s", &["takes a value where there is none"]);
    check_pickle(b"t", &["ends what has not begun"]);
    check_pickle(b"NNNs", &["puts entries into what is no dictionary, or half of one"]);
    check_pickle(b"}(Nu", &["puts entries into what is no dictionary, or half of one"]);
    check_pickle(b"N}b", &["sets what a value has that is no dictionary"]);
    check_pickle(b"NQ", &["refers to what is no storage"]);
    check_pickle(b"N)R", &["makes something of what is no name"]);
    check_pickle(b"ccollections\nOrderedDict\nN\x85R", &["makes OrderedDict of other arguments"]);
    check_pickle(b"ctorch._utils\n_rebuild_parameter\n)R", &["makes Parameter of other arguments"]);
    check_pickle(b"}N.", &["ends with something else than one dictionary"]);
    check_pickle(b"}N}.", &["ends with something else than one dictionary"]);
    check_pickle(b"}.", &["no tensors by name"]);
    check_pickle(b"}\x8c\x05model}s.", &["no tensors by name"]);
    check_pickle(&tensor(b"K\x04\x85K\x01\x85"), &["makes Tensor of other arguments"]);
    check_pickle(&tensor(b"N\x85K\x01\x85NN"), &["tensor a: a size that is no integer"]);
    let four = archive(&tensor(b"K\x04\x85K\x01\x85NN"), &[&[0; 16]]);
    assert_eq!(TorchFile::parse(&four).unwrap().tensor("a").unwrap().shape, [4]);
}

#[test]
fn archives_are_of_stored_entries() {
    let good = eight().finish();
    let pickle = tensor(b"K\x04\x85K\x01\x85NN");
    check_refused(b"", &["not a whole ZIP archive"]);
    check_refused(b"{\"not\": \"one\"}", &["not a whole ZIP archive"]);
    check_refused(&good[..good.len() - 1], &["not a whole ZIP archive"]);
    check_refused(&stored(&[("m/version", b"3")]), &["no data.pkl"]);
    check_refused(&stored(&[("m/data.pkl", &pickle)]), &["\"m/version\": missing"]);
    let two = stored(&[("a/data.pkl", &pickle), ("b/data.pkl", &pickle)]);
    check_refused(&two, &["entry \"b\": a second data.pkl"]);
    let with = |name: &str, bytes: &[u8]| {
        stored(&[("m/data.pkl", &pickle), ("m/data/0", &[0; 16]), (name, bytes)])
    };
    check_refused(&with("m/version", b"11"), &["m/version\": \"11\": must be from 1 to 10"]);
    check_refused(&with("m/version", b"x"), &["m/version\": \"x\": must be from 1 to 10"]);
    check_refused(&with("m/byteorder", b"big"), &["m/byteorder\": \"big\": must be little"]);
    check_refused(&with("m/data/0", b"1"), &["m/data/0\": appears twice"]);
    // In the directory's records: what begins with its signature.
    let record = good.windows(4).position(|bytes| bytes == b"PK\x01\x02").unwrap();
    let with = |at: usize, byte: u8| {
        let mut file = good.clone();
        file[record + at] = byte;
        file
    };
    check_refused(&with(8, 9), &["m/data.pkl\": encrypted", "convert the file to safetensors"]);
    check_refused(&with(10, 8), &["compressed by method 8", "convert the file to safetensors"]);
    check_refused(&with(20, 1), &["stored bytes are said to be"]);
    check_refused(&with(42, 1), &["m/data.pkl\": "]);
    check_refused(&with(46, b'x'), &["called otherwise where it begins"]);
}

#[test]
fn older_files_are_told_apart() {
    let old = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.";
    let mut tar = vec![b'a'; 512];
    tar[257..262].copy_from_slice(b"ustar");
    for file in [old.as_slice(), &tar] {
        check_refused(file, &["before 1.6", "convert it to safetensors"]);
    }
}

/// Two entries that have the same bytes, each as its own header says.
#[test]
fn entries_may_not_overlap() {
    let inner = stored(&[("m/data/1", b"abcd")]);
    let header = &inner[..inner.windows(4).position(|bytes| bytes == b"abcd").unwrap() + 4];
    let mut file = stored(&[("m/data/0", header), ("m/data/1", b"abcd")]);
    let all = |signature: &[u8]| -> Vec<usize> {
        (0..file.len() - 4).filter(|at| file[*at..].starts_with(signature)).collect()
    };
    let (inside, record) = (all(b"PK\x03\x04")[1], all(b"PK\x01\x02")[1]);
    file[record + 42..record + 46].copy_from_slice(&(inside as u32).to_le_bytes());
    check_refused(&file, &["entries overlap at byte"]);
}

proptest! {
    #[test]
    fn damaged_files_are_parsed_or_refused(
        flips in proptest::collection::vec((0usize..1 << 16, 0u8..8), 1..4),
        keep in 0usize..1 << 16,
    ) {
        let mut file = eight().view("v", ("FloatStorage", 0, 8), 4, &[4], &[1]).finish();
        for (at, bit) in flips {
            let at = at % file.len();
            file[at] ^= 1 << bit;
        }
        let _ = TorchFile::parse(&file);
        file.truncate(keep % file.len());
        prop_assert!(TorchFile::parse(&file).is_err());
    }

    #[test]
    fn any_pickle_is_read_or_refused(pickle in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = TorchFile::parse(&archive(&pickle, &[&[0; 16]]));
    }
}
