//! The bytes of a memory set as its arrays lie, without a copy.

use std::borrow::Cow;
use std::sync::Arc;

use aqueduct_kernels::tensor::KvData;
use aqueduct_kernels::{BackendError, KvHeads, MemorySet};
use bytemuck::cast_slice;
use bytes::Bytes;

// The wire's order of bytes is then that of memory.
const _: () = assert!(cfg!(target_endian = "little"));

/// What [`encode`](super::codec::encode) makes of the set that `owner` keeps, piece by piece. It
/// has no state: what has one goes as a whole to the next chunk, and is nobody's shard. Keys that
/// do not lie in order of position are laid out first. What lies in pages is read from
/// there, so that no copy of it stays with its owner, outside the pool.
///
/// # Errors
/// An array that cannot be read from its device.
pub(crate) fn views<O>(owner: &Arc<O>) -> Result<[Bytes; 5], BackendError>
where
    O: AsRef<MemorySet> + Send + Sync + 'static,
{
    let memory = (**owner).as_ref();
    memory.keys.positions.host()?;
    memory.score.host()?;
    memory.votes.host()?;
    if memory.keys.pool().is_none() {
        read(&memory.keys.k)?;
        read(&memory.keys.v)?;
    }
    let view =
        |bytes: fn(&MemorySet) -> &[u8]| Bytes::from_owner(View { owner: owner.clone(), bytes });
    let [k, v] = match memory.keys.in_order() {
        Cow::Borrowed(_) => {
            [view(|memory| elements(&memory.keys.k)), view(|memory| elements(&memory.keys.v))]
        }
        Cow::Owned(keys) => [keys.k, keys.v].map(|laid| Bytes::from_owner(Laid(laid))),
    };
    Ok([
        view(|memory| cast_slice(&memory.keys.positions)),
        view(|memory| cast_slice(&memory.score)),
        view(|memory| cast_slice(&memory.votes)),
        k,
        v,
    ])
}

/// One array of a set.
struct View<O> {
    owner: Arc<O>,
    bytes: fn(&MemorySet) -> &[u8],
}

impl<O: AsRef<MemorySet>> AsRef<[u8]> for View<O> {
    fn as_ref(&self) -> &[u8] {
        (self.bytes)((*self.owner).as_ref())
    }
}

/// Keys or values that were laid out for this.
struct Laid(KvHeads);

impl AsRef<[u8]> for Laid {
    fn as_ref(&self) -> &[u8] {
        elements(&self.0)
    }
}

/// Brings elements to the host, where they may not be yet.
fn read(heads: &KvHeads) -> Result<(), BackendError> {
    match &heads.data {
        KvData::F32(data) => data.host().map(drop),
        KvData::Bf16(data) => data.host().map(drop),
    }
}

fn elements(heads: &KvHeads) -> &[u8] {
    match &heads.data {
        KvData::F32(data) => cast_slice(data),
        KvData::Bf16(data) => cast_slice(data),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::codec;
    use crate::link::conformance::set;
    use aqueduct_core::WireDtype;
    use aqueduct_kernels::{Array, Keys, KvDtype, Pool, Resident};

    struct Held(MemorySet);

    impl AsRef<MemorySet> for Held {
        fn as_ref(&self) -> &MemorySet {
            &self.0
        }
    }

    #[test]
    fn are_the_bytes_that_travel() {
        let check = |memory: MemorySet| {
            let want = codec::encode(&memory, WireDtype::F32);
            assert_eq!(views(&Arc::new(Held(memory))).unwrap().concat(), want);
        };
        check(set(0, 1));
        check(set(300, 2));
        let pool = Pool::new(8, KvDtype::Bf16, 1 << 20).unwrap();
        check(set(300, 2).put_in(&pool).unwrap());
        let rows = |data: &[f32], kv| KvHeads::from_f32(1, data.len(), 1, data, kv);
        for kv in [KvDtype::F32, KvDtype::Bf16] {
            let (k, v) = (rows(&[3.0, 1.0, 2.0, 8.0], kv), rows(&[6.0, 4.0, 5.0, 8.0], kv));
            let keys = Keys::scattered(vec![2, 5, 7], k, v, vec![1, 2, 0]);
            let (score, votes) = (vec![0.5; 3].into(), vec![1.0; 3].into());
            check(MemorySet { keys, score, votes, state: Array::default(), end: 9 });
        }
    }

    /// Who answers for a shard holds on to it: a copy of its keys would stay as long as it does.
    #[test]
    fn what_lies_in_pages_is_not_copied_to_stay() {
        let pool = Pool::new(8, KvDtype::Bf16, 1 << 20).unwrap();
        let held = Arc::new(Held(set(300, 2).put_in(&pool).unwrap()));
        drop(views(&held).unwrap());
        for heads in [&held.0.keys.k, &held.0.keys.v] {
            let KvData::Bf16(data) = &heads.data else { panic!("bf16") };
            assert!(data.on_host().is_none());
        }
    }

    #[test]
    fn keys_that_lie_in_order_are_not_copied() {
        let held = Arc::new(Held(set(300, 2)));
        let views = views(&held).unwrap();
        assert_eq!(views[0].as_ptr(), cast_slice::<u32, u8>(&held.0.keys.positions).as_ptr());
        assert_eq!(views[4].as_ptr(), elements(&held.0.keys.v).as_ptr());
        assert_eq!(Arc::strong_count(&held), 6, "each of five holds on to them");
    }

    struct Lost;

    impl Resident<f32> for Lost {
        fn count(&self) -> usize {
            0
        }

        fn fetch(&self) -> Result<Vec<f32>, BackendError> {
            Err(BackendError::Device { device: "far".into(), what: "lost".into() })
        }
    }

    #[test]
    fn a_device_that_is_lost_is_an_error() {
        let mut memory = set(0, 1);
        memory.votes = Array::on_device(Arc::new(Lost));
        assert!(views(&Arc::new(Held(memory))).is_err());
    }
}
