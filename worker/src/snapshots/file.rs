//! A snapshot as a file: what it is of, the memory set of every layer as on the wire, and a
//! checksum of it all.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use aqueduct_core::work::{CONVENTION, RetainedMass};
use aqueduct_core::{ChunkKey, Epoch, Refusal, RequestId, SnapshotKey, WireDtype, limits};
use aqueduct_kernels::{MemorySet, SetShape};
use aqueduct_proto::convert::frame::SetHeader;
use bytes::Bytes;

use super::Snapshot;
use crate::inbox::{Fit, LayerFit};
use crate::link::codec;

/// Grows with every change of the layout. Of states nothing is said but what they are: how long
/// they are is the model's, and files of models without them are as they ever were.
const MAGIC: [u8; 8] = *b"aqsnap\0\x01";
const HEADER_BYTES: usize = 8 + 32 + 32 + 8;
const CHECKSUM_BYTES: usize = blake3::OUT_LEN;

/// A file is at most this much larger than the memory sets in it.
pub(super) const OVERHEAD_BYTES_MAX: u64 =
    (HEADER_BYTES + CHECKSUM_BYTES) as u64 + 4 + limits::LAYERS_MAX as u64 * 24;

/// Which model a file's sets are of.
#[derive(Debug, Clone)]
pub(super) struct Model {
    fingerprint: [u8; 32],
    fit: Fit,
}

impl Model {
    pub(super) fn new(fingerprint: &str, fit: Fit) -> Self {
        Self { fingerprint: blake3::hash(fingerprint.as_bytes()).into(), fit }
    }
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is not a snapshot of this version")]
    Version,
    #[error("it is of another model")]
    Model,
    #[error("it has another name inside")]
    Name,
    #[error("it has {seen} bytes, not {want}")]
    Length { seen: u64, want: u64 },
    #[error("its checksum is wrong")]
    Checksum,
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl FileError {
    /// Whether it says nothing of the file itself: no handle or no memory was left, the disk or
    /// the mount failed, we may not read it. Another try may go better, and what is in the file
    /// cannot be had again. One that is cut off stays so.
    pub(super) fn may_pass(&self) -> bool {
        let Self::Io(error) = self else { return false };
        !matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound)
    }
}

/// The whole file of `snapshot`.
pub(super) fn encode(model: &Model, key: &SnapshotKey, snapshot: &Snapshot) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(MAGIC);
    bytes.extend(key.0);
    bytes.extend(model.fingerprint);
    bytes.extend(0u64.to_le_bytes());
    bytes.extend((snapshot.retained.len() as u32).to_le_bytes());
    for RetainedMass { kept, total } in &snapshot.retained {
        bytes.extend(kept.to_le_bytes());
        bytes.extend(total.to_le_bytes());
    }
    for set in &snapshot.layers {
        bytes.extend((set.keys.len() as u32).to_le_bytes());
        bytes.extend(set.end.to_le_bytes());
        bytes.extend(codec::encode(set, WireDtype::F32));
    }
    seal(&mut bytes);
    bytes
}

/// Has a file that ends before its checksum say how long it is, and appends the checksum.
fn seal(bytes: &mut Vec<u8>) {
    let len = (bytes.len() + CHECKSUM_BYTES) as u64;
    bytes[HEADER_BYTES - 8..HEADER_BYTES].copy_from_slice(&len.to_le_bytes());
    bytes.extend(blake3::hash(bytes).as_bytes());
}

/// Looks at the beginning of a file that should be of `key`, and gives its length.
pub(super) fn peek(path: &Path, model: &Model, key: &SnapshotKey) -> Result<u64, FileError> {
    let mut file = File::open(path)?;
    let mut header = [0; HEADER_BYTES];
    file.read_exact(&mut header)?;
    let want = check_header(&header, model, key)?;
    let seen = file.metadata()?.len();
    if seen == want { Ok(want) } else { Err(FileError::Length { seen, want }) }
}

/// The snapshot in a file that should be of `key` and have `len` bytes.
pub(super) fn read(
    path: &Path,
    model: &Model,
    (key, len): (&SnapshotKey, u64),
) -> Result<Snapshot, FileError> {
    let mut bytes = Vec::new();
    File::open(path)?.take(len + 1).read_to_end(&mut bytes)?;
    decode(&bytes, model, (key, len))
}

/// Any snapshot of `model` in `bytes`, and its name.
pub(super) fn open(bytes: &[u8], model: &Model) -> Result<(SnapshotKey, Snapshot), FileError> {
    let mut reader = Reader(bytes);
    let version = reader.array::<8>();
    let name = version.filter(|version| *version == MAGIC).and_then(|_| reader.array());
    let key = SnapshotKey(name.ok_or(FileError::Version)?);
    Ok((key, decode(bytes, model, (&key, bytes.len() as u64))?))
}

fn decode(
    bytes: &[u8],
    model: &Model,
    (key, want): (&SnapshotKey, u64),
) -> Result<Snapshot, FileError> {
    let wrong = || FileError::Length { seen: bytes.len() as u64, want };
    if bytes.len() as u64 != want {
        return Err(wrong());
    }
    let (body, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or_else(wrong)?;
    if blake3::hash(body) != *checksum {
        return Err(FileError::Checksum);
    }
    let (header, body) = body.split_first_chunk().ok_or_else(wrong)?;
    if check_header(header, model, key)? != want {
        return Err(wrong());
    }
    let mut reader = Reader(body);
    let masses = reader.u32().ok_or_else(wrong)?;
    Refusal::unless_within("retained", masses, 0, limits::LAYERS_MAX)?;
    let retained: Option<Vec<_>> = (0..masses).map(|_| reader.mass()).collect();
    let retained = retained.ok_or_else(wrong)?;
    retained.iter().try_for_each(RetainedMass::validate)?;
    let layers = (0..model.fit.layers()).map(|layer| {
        let header = reader.set(layer, &model.fit).ok_or_else(wrong)?;
        let payload = reader.take(header.payload_bytes()).ok_or_else(wrong)?;
        Ok(Arc::new(codec::decode(&header, Bytes::copy_from_slice(payload))?))
    });
    let layers: Vec<Arc<MemorySet>> = layers.collect::<Result<_, FileError>>()?;
    if !reader.0.is_empty() {
        return Err(wrong());
    }
    check_layers(&layers, &model.fit)?;
    Ok(Snapshot { layers, retained, is_prefix: false })
}

/// Checks what a seal does not: whoever gives a worker a file can make its checksum right, and a
/// set that no chunk could have given would end whoever goes on from it.
fn check_layers(layers: &[Arc<MemorySet>], fit: &Fit) -> Result<(), Refusal> {
    let end = layers.first().map_or(0, |set| set.end);
    for (layer, set) in (0..).zip(layers) {
        fit.check(layer, &SetShape::of(set))?;
        Refusal::unless_within("end", set.end, end, end)?;
    }
    Ok(())
}

/// The length that the file says it has.
fn check_header(
    header: &[u8; HEADER_BYTES],
    model: &Model,
    key: &SnapshotKey,
) -> Result<u64, FileError> {
    let mut reader = Reader(header);
    if reader.array() != Some(MAGIC) {
        return Err(FileError::Version);
    }
    if reader.array() != Some(key.0) {
        return Err(FileError::Name);
    }
    if reader.array() != Some(model.fingerprint) {
        return Err(FileError::Model);
    }
    reader.array().map(u64::from_le_bytes).ok_or(FileError::Version)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn take(&mut self, bytes: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(bytes).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn mass(&mut self) -> Option<RetainedMass> {
        let kept = self.array().map(f64::from_le_bytes)?;
        Some(RetainedMass { kept, total: self.array().map(f64::from_le_bytes)? })
    }

    /// What a layer's set looks like; all but two numbers is the model's, and a state is behind
    /// some token.
    fn set(&mut self, layer: u32, fit: &Fit) -> Option<SetHeader> {
        let LayerFit { state, kv_heads, head_dim } = fit.of_layer(layer).ok()?;
        let key = ChunkKey { request: RequestId(0), chunk_idx: 0, epoch: Epoch(0) };
        Some(SetHeader {
            key,
            layer,
            convention: CONVENTION,
            kv: codec::to_core(fit.kv),
            kv_heads: kv_heads as u32,
            head_dim: head_dim as u32,
            keys: self.u32()?,
            state,
            end: self.u32()?,
            wire: WireDtype::F32,
            spared: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_kernels::Array;
    use proptest::prelude::*;

    use super::*;
    use crate::link::conformance::{fit, hybrid_fit, set, state};

    const KEY: SnapshotKey = SnapshotKey([3; 32]);
    /// Tokens that all layers have processed, as [`state`] of 1 has.
    const END: u32 = 10;

    fn model() -> Model {
        Model::new("this one", fit())
    }

    fn snapshot() -> Snapshot {
        let layer = |layer: u32| Arc::new(MemorySet { end: END, ..set(layer % 3, layer) });
        let retained = vec![RetainedMass { kept: 1.5, total: 2.0 }; 8];
        let layers = (0..fit().layers()).map(layer).collect();
        Snapshot { layers, retained, is_prefix: false }
    }

    /// What befalls a file behind its header.
    #[derive(Debug, Clone)]
    enum Edit {
        Number([u8; 8]),
        Flip(u8),
        Remove(usize),
        Insert(Vec<u8>),
    }

    fn edit() -> impl Strategy<Value = Edit> {
        let numbers = [f64::NAN, -1.0, f64::INFINITY, 2.5].map(f64::to_le_bytes);
        let counts = [u64::MAX, 1 << 32, 1, 0].map(u64::to_le_bytes);
        prop_oneof![
            prop::sample::select([numbers, counts].concat()).prop_map(Edit::Number),
            (1u8..).prop_map(Edit::Flip),
            (1usize..40).prop_map(Edit::Remove),
            prop::collection::vec(any::<u8>(), 1..40).prop_map(Edit::Insert),
        ]
    }

    impl Edit {
        /// `early`: where counts and masses are.
        fn apply(self, bytes: &mut Vec<u8>, (at, early): (prop::sample::Index, bool)) {
            let body = bytes.len() - HEADER_BYTES;
            let within = if early { body.min(160) } else { body };
            let at = HEADER_BYTES + at.index(within + 1);
            let upto = |count: usize| at..(at + count).min(bytes.len());
            match self {
                Self::Number(number) => {
                    let place = upto(number.len());
                    bytes.splice(place, number);
                }
                Self::Flip(flip) => bytes.iter_mut().skip(at).take(1).for_each(|it| *it ^= flip),
                Self::Remove(count) => {
                    bytes.drain(upto(count));
                }
                Self::Insert(more) => {
                    bytes.splice(at..at, more);
                }
            }
        }
    }

    fn read_back(bytes: &[u8], model: &Model, key: &SnapshotKey) -> Result<Snapshot, FileError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, bytes).unwrap();
        let len = peek(&path, model, key)?;
        read(&path, model, (key, len))
    }

    #[test]
    fn keeps_every_bit() {
        let bytes = encode(&model(), &KEY, &snapshot());
        assert_eq!(read_back(&bytes, &model(), &KEY).unwrap(), snapshot());
        assert_eq!(open(&bytes, &model()).unwrap(), (KEY, snapshot()));
        assert!(bytes.len() as u64 <= snapshot().bytes() + OVERHEAD_BYTES_MAX);
        assert!(matches!(open(&bytes[..20], &model()), Err(FileError::Version)));
    }

    #[test]
    fn states_lie_whole_beside_keys() {
        let model = Model::new("this one", hybrid_fit());
        let with = |last: MemorySet| {
            let layers = [snapshot().layers, vec![Arc::new(last)]].concat();
            Snapshot { layers, ..snapshot() }
        };
        let kept = with(state(1));
        let bytes = encode(&model, &KEY, &kept);
        assert_eq!(read_back(&bytes, &model, &KEY).unwrap(), kept);
        assert_eq!(open(&bytes, &model).unwrap(), (KEY, kept));
        let check = |last: MemorySet, want: &str| {
            let bytes = encode(&model, &KEY, &with(last));
            let refused = open(&bytes, &model).unwrap_err().to_string();
            assert!(refused.contains(want), "{refused}");
        };
        check(MemorySet { state: Array::default(), ..state(1) }, "bytes, not");
        check(MemorySet { state: vec![0.5; 99].into(), ..state(1) }, "bytes, not");
        let mut broken = state(1);
        broken.state[3] = f32::NAN;
        check(broken, "state = NaN: must be finite");
        let both = MemorySet { state: state(1).state, end: END, ..set(2, 1) };
        check(both, "keys = 2: must be");
        check(state(2), "end = 11: must be");
        let few = encode(&model, &KEY, &snapshot());
        assert!(open(&few, &model).is_err(), "a layer is missing");
    }

    #[test]
    fn refuses_what_is_not_its_own() {
        let check = |bytes: Vec<u8>, want: &str| {
            let refused = read_back(&bytes, &model(), &KEY).unwrap_err().to_string();
            assert!(refused.contains(want), "{refused}");
        };
        let good = || encode(&model(), &KEY, &snapshot());
        let with = |change: fn(&mut Vec<u8>)| {
            let mut bytes = good();
            change(&mut bytes);
            bytes
        };
        check(encode(&model(), &SnapshotKey([4; 32]), &snapshot()), "another name");
        check(encode(&Model::new("that one", fit()), &KEY, &snapshot()), "another model");
        check(with(|bytes| bytes[7] = 9), "this version");
        check(with(|bytes| bytes.truncate(bytes.len() - 1)), "bytes, not");
        check(with(|bytes| bytes.push(0)), "bytes, not");
        check(with(|bytes| bytes.truncate(20)), "fill whole buffer");
        check(with(|bytes| bytes[200] ^= 1), "checksum");
        let few = Snapshot { layers: snapshot().layers[..7].to_vec(), ..snapshot() };
        check(encode(&model(), &KEY, &few), "bytes, not");
    }

    #[test]
    fn only_what_is_wrong_with_the_file_itself_is_for_good() {
        let check = |error: io::Error, want: bool| {
            let error = FileError::from(error);
            assert_eq!(error.may_pass(), want, "{error:?}");
        };
        // EIO, ENOMEM, EACCES, ENFILE, EMFILE and ESTALE, as Linux has them.
        for code in [5, 12, 13, 23, 24, 116] {
            check(io::Error::from_raw_os_error(code), true);
        }
        check(io::ErrorKind::OutOfMemory.into(), true);
        check(io::ErrorKind::NotFound.into(), false);
        check(io::ErrorKind::UnexpectedEof.into(), false);
        let wrong = [FileError::Version, FileError::Model, FileError::Name, FileError::Checksum];
        assert!(!wrong.iter().any(FileError::may_pass));
        assert!(!FileError::Length { seen: 1, want: 2 }.may_pass());
        let folder = tempfile::tempdir().unwrap();
        let missing = peek(&folder.path().join("file"), &model(), &KEY).unwrap_err();
        assert!(!missing.may_pass(), "{missing}");
        let elsewhere = read(folder.path(), &model(), (&KEY, 9)).unwrap_err();
        assert!(elsewhere.may_pass(), "a folder in its place: {elsewhere}");
    }

    proptest! {
        #[test]
        fn flipped_bytes_are_refused(at in any::<prop::sample::Index>(), flip in 1u8..) {
            let mut bytes = encode(&model(), &KEY, &snapshot());
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            let len = bytes.len() as u64;
            prop_assert!(decode(&bytes, &model(), (&KEY, len)).is_err());
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut bytes = [&MAGIC[..], &KEY.0, &model().fingerprint, &bytes].concat();
            bytes.resize(bytes.len().max(HEADER_BYTES), 0);
            seal(&mut bytes);
            let len = bytes.len() as u64;
            prop_assert!(decode(&bytes, &model(), (&KEY, len)).is_err());
        }

        /// Whoever gives a worker a file can make its checksum right.
        #[test]
        fn what_is_sealed_is_read_as_it_was_written_or_refused(
            edits in prop::collection::vec((any::<(prop::sample::Index, bool)>(), edit()), 1..4),
        ) {
            let mut bytes = encode(&model(), &KEY, &snapshot());
            bytes.truncate(bytes.len() - CHECKSUM_BYTES);
            for (at, edit) in edits {
                edit.apply(&mut bytes, at);
            }
            seal(&mut bytes);
            if let Ok((key, snapshot)) = open(&bytes, &model()) {
                prop_assert!(snapshot.retained.iter().all(|mass| mass.validate().is_ok()));
                prop_assert!(encode(&model(), &key, &snapshot) == bytes);
            }
        }
    }
}
