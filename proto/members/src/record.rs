//! What a worker says of itself in etcd.

use aqueduct_core::{Refusal, limits};
use serde::{Deserialize, Serialize};

use crate::etcd::host_of;

/// A member of the cluster. JSON in etcd; fields that a reader does not know are ignored, so that
/// workers and coordinators may be of different releases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Where coordinators and other workers reach it: `http://host:port` or `https://host:port`.
    pub url: String,
    /// Hash of model weights and configuration.
    pub fingerprint: String,
    /// What computes: `cpu`, `cuda:0`.
    pub device: String,
    /// Most tokens whose keys it keeps in shards; absent if memory alone bounds them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_tokens: Option<u64>,
    /// Compute threads.
    pub threads: u32,
    /// What it holds, as of some seconds ago.
    #[serde(default)]
    pub load: Load,
}

/// What a worker holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Load {
    /// Requests that it remembers anything of.
    pub requests: u64,
    /// Bytes of keys and values, wherever they wait.
    pub bytes: u64,
}

impl Record {
    /// As it lies in etcd.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default() // strings and numbers always serialise
    }

    /// Reads what lies in etcd at `PREFIX/workers/host`.
    ///
    /// # Errors
    /// Too many bytes, another shape, or a URL that is not that of the key.
    pub fn parse(host: &str, json: &[u8]) -> Result<Self, Refusal> {
        Refusal::unless_within("record.bytes", json.len(), 2, limits::MEMBER_BYTES_MAX)?;
        let record: Self = serde_json::from_slice(json)
            .map_err(|error| Refusal::new("record", error, "a worker's record"))?;
        if host_of(&record.url) != Some(host) {
            return Err(Refusal::new(
                "record.url",
                &record.url,
                format!("http://{host} or https://{host}"),
            ));
        }
        Ok(record)
    }

    /// The last part of its key.
    ///
    /// # Errors
    /// A URL that others could not use.
    pub fn host(&self) -> Result<&str, Refusal> {
        host_of(&self.url)
            .ok_or_else(|| Refusal::new("url", &self.url, "a URL like http://host:port"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record() -> Record {
        Record {
            url: "http://10.0.0.7:7001".into(),
            fingerprint: "abc".into(),
            device: "cpu".into(),
            pool_tokens: None,
            threads: 2,
            load: Load { requests: 1, bytes: 2 },
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let check = |record: &Record| {
            let host = record.host().unwrap();
            assert_eq!(Record::parse(host, &record.to_json()).as_ref(), Ok(record));
        };
        check(&record());
        check(&Record { pool_tokens: Some(u64::MAX), ..record() });
        let newer = br#"{"url": "http://a:1", "fingerprint": "", "device": "", "threads": 1,
                         "zone": "b"}"#;
        assert_eq!(Record::parse("a:1", newer).unwrap().load, Load::default());
    }

    #[test]
    fn refuses_by_field() {
        let check = |host: &str, json: &[u8], field: &str| {
            assert_eq!(Record::parse(host, json).unwrap_err().field, field);
        };
        check("10.0.0.8:7001", &record().to_json(), "record.url");
        check("a:1", b"{}", "record");
        check("a:1", b"", "record.bytes");
        check("a:1", &vec![b' '; limits::MEMBER_BYTES_MAX + 1], "record.bytes");
    }

    proptest! {
        #[test]
        fn garbage_is_refused(json: Vec<u8>) {
            prop_assert!(Record::parse("a:1", &json).is_err());
        }
    }
}
