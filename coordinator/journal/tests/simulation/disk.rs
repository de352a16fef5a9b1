//! A disk that forgets, at a crash, any part of what was not flushed.

use std::io::{Error, Result};
use std::sync::{Arc, Mutex, MutexGuard};

use redb::StorageBackend;

use crate::random::Random;

/// Clones are the same disk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Disk(Arc<Mutex<Platter>>);

#[derive(Debug, Default)]
struct Platter {
    /// What survives.
    flushed: Vec<u8>,
    /// What is read.
    current: Vec<u8>,
    /// What makes one the other.
    pending: Vec<Change>,
    /// So many more changes or flushes succeed; none that follows does.
    fuse: Option<u64>,
}

#[derive(Debug)]
enum Change {
    Length(usize),
    Bytes(usize, Vec<u8>),
}

impl Change {
    fn apply(&self, to: &mut Vec<u8>) {
        match self {
            Self::Length(length) => to.resize(*length, 0),
            Self::Bytes(at, bytes) => {
                to.resize(to.len().max(at + bytes.len()), 0);
                to[*at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
    }
}

impl Disk {
    /// From now on, after `changes` more, everything fails.
    pub(crate) fn burn(&self, changes: u64) {
        self.lock().fuse = Some(changes);
    }

    /// The machine is started again: of what was not flushed any part may be there.
    pub(crate) fn crash(&self, random: &mut Random) {
        let mut platter = self.lock();
        let Platter { flushed, current, pending, fuse } = &mut *platter;
        for change in pending.drain(..) {
            match change {
                _ if random.below(2) == 0 => {}
                Change::Bytes(at, mut bytes) if random.below(4) == 0 => {
                    bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
                    Change::Bytes(at, bytes).apply(flushed);
                }
                whole => whole.apply(flushed),
            }
        }
        current.clone_from(flushed);
        *fuse = None;
    }

    fn change(&self, change: Change) -> Result<()> {
        let mut platter = self.lock();
        platter.spend()?;
        change.apply(&mut platter.current);
        platter.pending.push(change);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Platter> {
        self.0.lock().unwrap()
    }
}

impl Platter {
    fn spend(&mut self) -> Result<()> {
        match &mut self.fuse {
            Some(0) => Err(Error::other("the machine has crashed")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64> {
        Ok(self.lock().current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let at = offset as usize;
        let platter = self.lock();
        let bytes = platter.current.get(at..at + out.len());
        out.copy_from_slice(bytes.ok_or_else(|| Error::other("beyond the end"))?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> Result<()> {
        self.change(Change::Length(length as usize))
    }

    fn sync_data(&self) -> Result<()> {
        let mut platter = self.lock();
        platter.spend()?;
        let Platter { flushed, pending, .. } = &mut *platter;
        pending.drain(..).for_each(|change| change.apply(flushed));
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.change(Change::Bytes(offset as usize, data.to_vec()))
    }
}
