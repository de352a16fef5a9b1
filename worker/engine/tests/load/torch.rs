//! Folders whose weights `torch.save` wrote: the same models as in safetensors, to the bit.
//! `tests/torch/make.py` made the fixtures.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use aqueduct_core::MemoryPolicy;
use aqueduct_engine::{Block, LocalPort, Model, Want, prefill};
use aqueduct_kernels::Leaves;
use aqueduct_torch::write::{Writer, archive};
use aqueduct_torch::{Data, TorchFile};
use safetensors::SafeTensors;

use crate::support::{Folder, Tensor, config, hf_folder, load, safetensors, tensors};

const FIXTURES: [&str; 3] = ["gpt2", "llama", "opt"];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch").join(name)
}

/// A folder with those files of a fixture.
fn folder_of(name: &str, is_one: impl Fn(&str) -> bool) -> Folder {
    let files = std::fs::read_dir(fixture(name)).unwrap().map(|file| file.unwrap());
    files.fold(Folder::empty(), |folder, file| {
        let name = file.file_name().into_string().unwrap();
        match name == "config.json" || is_one(&name) {
            true => folder.with(&name, std::fs::read(file.path()).unwrap()),
            false => folder,
        }
    })
}

fn logits(model: &Model) -> Vec<f32> {
    let block = Block { tokens: &[1, 7, 3, 3, 10], start: 0, leaves: Leaves::ONE };
    let mut port = LocalPort::empty(model);
    let done = prefill(model, block, &MemoryPolicy::dense(), &mut port, Want::All).unwrap();
    model.logits(&done.hidden).unwrap().into_vec()
}

fn writer<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Writer {
    tensors.into_iter().fold(Writer::new(), |writer, tensor| {
        let shape: Vec<u32> = tensor.shape.iter().map(|size| *size as u32).collect();
        let bytes: Vec<u8> = tensor.data.iter().flat_map(|x| x.to_le_bytes()).collect();
        writer.tensor(&tensor.hf, "FloatStorage", &shape, &bytes)
    })
}

fn bin_folder(file: Vec<u8>) -> Folder {
    Folder::empty().with("config.json", config().to_string()).with("pytorch_model.bin", file)
}

/// Loading must fail with an error that names the file and says all of `parts`.
fn check_refused(file: Vec<u8>, parts: &[&str]) {
    let error = load(bin_folder(file).path()).expect_err(&format!("{parts:?}")).to_string();
    for part in parts.iter().chain(&["pytorch_model.bin"]) {
        assert!(error.contains(part), "{error:?} should say {part:?}");
    }
}

#[test]
fn files_of_pytorch_make_the_models_of_safetensors() {
    for name in FIXTURES {
        let [a, b] = [".safetensors", ".bin"].map(|kind| {
            let folder = folder_of(name, |file| file.contains(kind));
            load(folder.path()).unwrap_or_else(|error| panic!("{name}: {error}"))
        });
        assert_eq!(a.fingerprint(), b.fingerprint(), "{name}");
        assert_eq!(logits(&a), logits(&b), "{name}");
    }
    let all = tensors();
    let whole = load(hf_folder(&config()).path()).unwrap();
    let model = load(bin_folder(writer(&all).finish()).path()).unwrap();
    assert_eq!(model.fingerprint(), whole.fingerprint());
    assert_eq!(logits(&model), logits(&whole));
    // Both: safetensors are taken.
    let both = bin_folder(b"no archive".to_vec()).with("model.safetensors", safetensors(&all));
    assert_eq!(load(both.path()).unwrap().fingerprint(), whole.fingerprint());
}

#[test]
fn tensors_of_pytorch_are_those_of_safetensors() {
    for name in FIXTURES {
        let bytes = std::fs::read(fixture(name).join("model.safetensors")).unwrap();
        let want = SafeTensors::deserialize(&bytes).unwrap();
        let files: Vec<Vec<u8>> = std::fs::read_dir(fixture(name))
            .unwrap()
            .map(|file| file.unwrap().path())
            .filter(|path| path.extension().is_some_and(|it| it == "bin"))
            .map(|path| std::fs::read(path).unwrap())
            .collect();
        let files: Vec<_> = files.iter().map(|file| TorchFile::parse(file).unwrap()).collect();
        let seen: BTreeMap<_, _> =
            files.iter().flat_map(TorchFile::tensors).map(|it| (it.name, it)).collect();
        for (name, tensor) in want.tensors() {
            let as_saved = |seen: &&str| name.ends_with(*seen);
            let seen = seen.iter().filter(|(own, _)| as_saved(own)).map(|(_, it)| it);
            let seen = seen.max_by_key(|it| it.name.len()).expect(&name);
            assert_eq!(seen.shape, tensor.shape(), "{name}");
            assert_eq!(seen.dtype.name, format!("{:?}", tensor.dtype()), "{name}");
            assert_eq!(seen.data, Data::InOrder(tensor.data()), "{name}");
        }
    }
}

#[test]
fn what_is_wrong_with_files_of_pytorch_is_named() {
    // All tensors but one, and that one in another way.
    let with = |more: fn(Writer) -> Writer| {
        let all = tensors();
        more(writer(all.iter().filter(|tensor| tensor.hf != "model.norm.weight"))).finish()
    };
    let norm = "model.norm.weight";
    // Of storage 0 every second element, and one more than it has.
    check_refused(
        with(|all| all.view("model.norm.weight", ("FloatStorage", 0, 88), 0, &[8], &[2])),
        &["tensor type `F32 of strides [2] in model.norm.weight` is not supported"],
    );
    check_refused(
        with(|all| all.view("model.norm.weight", ("FloatStorage", 0, 88), 81, &[8], &[1])),
        &[norm, "offset 81, shape [8], strides [1]: must lie in the 88 elements of storage"],
    );
    check_refused(
        with(|all| all.tensor("model.norm.weight", "LongStorage", &[8], &[0; 64])),
        &["tensor type `I64` is not supported"],
    );
    check_refused(archive(b"\x80\x02cos\nsystem\n.", &[]), &["\"os.system\"", "nothing is run"]);
    check_refused(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.".to_vec(), &["before 1.6"]);
    let whole = writer(&tensors()).finish();
    for keep in (0..whole.len()).step_by(41) {
        check_refused(whole[..keep].to_vec(), &["not a whole ZIP archive"]);
    }
}
