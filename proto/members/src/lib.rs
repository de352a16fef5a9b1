//! Who belongs to the cluster: workers register in etcd, coordinators watch.
//!
//! A worker's [`Record`] lies at `PREFIX/workers/HOST:PORT` under a lease that the worker keeps
//! alive. When the worker dies the lease ends, the key goes, and every coordinator that watches
//! hears of it. While etcd is away nothing changes: who was a member remains one.
#![forbid(unsafe_code)]

mod etcd;
mod grace;
mod health;
mod record;
mod registration;
mod roll;

pub use etcd::{Etcd, EtcdError, host_of};
pub use health::Health;
pub use record::{Load, Record};
pub use registration::Registration;
pub use roll::{Members, Roll};
