//! The file of keys: JSON, hashes only.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use aqueduct_core::{Refusal, limits};
use serde::{Deserialize, Serialize};

use super::Secret;

/// All keys that were ever made and not deleted by hand.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyFile {
    keys: BTreeMap<String, KeyRecord>,
}

/// What is known of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRecord {
    /// Its public part.
    pub id: String,
    /// BLAKE3 of the whole key, in hexadecimal digits.
    hash: String,
    /// Whose it is, for people.
    pub name: String,
    /// When it was made, in seconds since 1970.
    pub created_s: u64,
    /// Nobody may use it any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoked: bool,
    /// May look after the cluster.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub admin: bool,
    /// How much it may have.
    #[serde(default)]
    pub limits: KeyLimits,
}

/// How much one key may have; what is absent is bounded by the server alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyLimits {
    /// Requests at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u32>,
    /// Tokens in a minute, of prompts and of what is generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u64>,
    /// Tokens of one prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u32>,
}

/// As it is written.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    keys: Vec<KeyRecord>,
}

impl KeyLimits {
    /// Checks every limit against its bound.
    ///
    /// # Errors
    /// One that lets nothing through.
    pub fn validate(&self) -> Result<(), Refusal> {
        Refusal::unless_within("requests", self.requests.unwrap_or(1), 1, u32::MAX)?;
        let tokens = self.tokens_per_minute.unwrap_or(1);
        Refusal::unless_within("tokens_per_minute", tokens, 1, limits::KEY_TOKENS_PER_MINUTE_MAX)?;
        let most = limits::PROMPT_TOKENS_MAX;
        Refusal::unless_within("prompt_tokens", self.prompt_tokens.unwrap_or(1), 1, most).map(drop)
    }
}

impl KeyRecord {
    pub(super) fn hash(&self) -> blake3::Hash {
        // It was checked when the file was read.
        blake3::Hash::from_hex(&self.hash).unwrap_or(blake3::Hash::from_bytes([0; 32]))
    }

    fn validate(&self) -> Result<(), Refusal> {
        let is_id = (1..=32).contains(&self.id.len())
            && self.id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_id {
            return Err(Refusal::new("id", &self.id, "1 to 32 letters and digits"));
        }
        if blake3::Hash::from_hex(&self.hash).is_err() {
            return Err(Refusal::new("hash", &self.id, "a key with a hash of 64 digits"));
        }
        Refusal::unless_within("name.bytes", self.name.len(), 0, limits::KEY_NAME_BYTES_MAX)?;
        self.limits.validate()
    }
}

impl KeyFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// No such file, or one that is not of keys.
    pub fn read(path: &Path) -> Result<Self, Refusal> {
        let bytes = std::fs::read(path).map_err(|error| {
            let bound = format!("a file that can be read: {error}");
            Refusal::new("api_keys", path.display(), bound)
        })?;
        Self::parse(&bytes)
    }

    /// Reads what such a file holds.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        let most = limits::KEY_FILE_BYTES_MAX;
        Refusal::unless_within("api_keys.bytes", bytes.len(), 2, most)?;
        let written: Written = serde_json::from_slice(bytes)
            .map_err(|error| Refusal::new("api_keys", error, "a file of keys"))?;
        let mut keys = BTreeMap::new();
        for record in written.keys {
            record.validate()?;
            let id = record.id.clone();
            if keys.insert(id.clone(), record).is_some() {
                return Err(Refusal::new("id", id, "that of one key"));
            }
        }
        Ok(Self { keys })
    }

    /// Writes the file at `path` in one step, as [`aqueduct_tls::rewrite`] does.
    ///
    /// # Errors
    /// What the system reports.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        let written = Written { keys: self.keys.values().cloned().collect() };
        let mut json = serde_json::to_vec_pretty(&written).map_err(std::io::Error::other)?;
        json.push(b'\n');
        aqueduct_tls::rewrite(path, &json)
    }

    /// Adds a key.
    ///
    /// # Errors
    /// A name or a limit out of bounds.
    pub fn add(
        &mut self,
        secret: &Secret,
        name: &str,
        admin: bool,
        limits: KeyLimits,
    ) -> Result<&KeyRecord, Refusal> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let record = KeyRecord {
            id: secret.id().unwrap_or_default().to_owned(),
            hash: secret.hash().to_hex().to_string(),
            name: name.to_owned(),
            created_s: now.as_secs(),
            revoked: false,
            admin,
            limits,
        };
        record.validate()?;
        Ok(self.keys.entry(record.id.clone()).insert_entry(record).into_mut())
    }

    /// Ends a key.
    ///
    /// # Errors
    /// There is no such key.
    pub fn revoke(&mut self, id: &str) -> Result<(), Refusal> {
        let record = self.keys.get_mut(id);
        record.ok_or_else(|| Refusal::new("id", id, "that of a key in the file"))?.revoked = true;
        Ok(())
    }

    /// All keys, by id.
    pub fn records(&self) -> impl Iterator<Item = &KeyRecord> {
        self.keys.values()
    }

    pub(super) fn find(&self, id: &str) -> Option<&KeyRecord> {
        self.keys.get(id)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one() -> (KeyFile, Secret) {
        let (mut file, secret) = (KeyFile::default(), Secret::draw().unwrap());
        let limits = KeyLimits { requests: Some(2), ..KeyLimits::default() };
        file.add(&secret, "alice", false, limits).unwrap();
        (file, secret)
    }

    #[test]
    fn what_is_written_is_read_and_holds_no_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.json");
        let (mut file, secret) = one();
        file.write(&path).unwrap();
        assert_eq!(KeyFile::read(&path).as_ref(), Ok(&file));
        file.revoke(secret.id().unwrap()).unwrap();
        file.write(&path).unwrap();
        assert!(KeyFile::read(&path).unwrap().records().all(|record| record.revoked));
        let text = std::fs::read_to_string(&path).unwrap();
        let tail = secret.reveal().rsplit('_').next().unwrap();
        assert!(!text.contains(tail), "the key stands in {text}");
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(&path).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside");
    }

    #[test]
    fn refuses_by_field() {
        let good = {
            let folder = tempfile::tempdir().unwrap();
            one().0.write(&folder.path().join("k")).unwrap();
            std::fs::read_to_string(folder.path().join("k")).unwrap()
        };
        let check = |from: &str, to: &str, field: &str| {
            assert!(good.contains(from), "{from} is not in {good}");
            let refusal = KeyFile::parse(good.replace(from, to).as_bytes()).unwrap_err();
            assert_eq!(refusal.field, field, "{refusal}");
        };
        check("\"requests\": 2", "\"requests\": 0", "requests");
        check("\"requests\": 2", "\"tokens_per_minute\": 0", "tokens_per_minute");
        check("\"requests\": 2", "\"prompt_tokens\": 0", "prompt_tokens");
        check("\"requests\": 2", "\"request\": 2", "api_keys");
        check("\"hash\": \"", "\"hash\": \"x", "hash");
        check("\"id\": \"", "\"id\": \"-", "id");
        check("alice", &"a".repeat(limits::KEY_NAME_BYTES_MAX + 1), "name.bytes");
        assert_eq!(KeyFile::parse(b"").unwrap_err().field, "api_keys.bytes");
        let record = good.split_once('[').unwrap().1.rsplit_once(']').unwrap().0;
        let twice = format!("{{\"keys\": [{record}, {record}]}}");
        assert_eq!(KeyFile::parse(twice.as_bytes()).unwrap_err().field, "id");
    }

    proptest! {
        #[test]
        fn garbage_is_refused(bytes: Vec<u8>) {
            prop_assert!(KeyFile::parse(&bytes).is_err());
        }
    }
}
