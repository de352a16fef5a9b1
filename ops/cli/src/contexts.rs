//! Servers that are written down under names, for commands that ask one: a file as kubectl has
//! one, with a context in use.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use aqueduct_client::{ApiKey, Identity, TlsFiles};
use aqueduct_core::{Refusal, limits};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Nobody writes down so many servers.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What is written down.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contexts {
    /// The one in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<String>,
    /// By name.
    #[serde(default)]
    pub(crate) contexts: BTreeMap<String, Context>,
}

/// One server, and how it knows us. Keys and certificates are in files of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Context {
    /// gRPC address of its coordinator.
    pub(crate) server: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tls_ca: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tls_cert: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tls_key: Option<PathBuf>,
    /// A file with nothing but an API key in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) api_key_file: Option<PathBuf>,
}

impl Contexts {
    /// What is in the file at `path`; nothing if there is none.
    ///
    /// # Errors
    /// A file that is none of contexts.
    pub(crate) fn read(path: &Path) -> Result<Self, Refusal> {
        let wrong = |why: String| Refusal::new("config", path.display(), why);
        match fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(error) => return Err(wrong(format!("readable: {error}"))),
            Ok(file) => Refusal::unless_within("config_bytes", file.len(), 0, FILE_BYTES_MAX)?,
        };
        let text = fs::read(path).map_err(|error| wrong(format!("readable: {error}")))?;
        // An array would do for a struct whose fields all have defaults.
        serde_json::from_slice::<Map<String, Value>>(&text)
            .and_then(|object| serde_json::from_value(object.into()))
            .map_err(|error| wrong(format!("a file of contexts: {error}")))
    }

    fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        Ok(aqueduct_tls::rewrite(path, text.as_bytes()).map_err(|it| unwritable(path, &it))?)
    }

    /// Lets `change` have the file's contexts, while nobody else changes them, and writes them.
    ///
    /// # Errors
    /// A file that is none of contexts, a folder that cannot be written to, and what `change` says.
    pub(crate) fn change(
        path: &Path,
        change: impl FnOnce(&mut Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let wrong = |error| unwritable(path, &error);
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        folder.map_or(Ok(()), fs::create_dir_all).map_err(wrong)?;
        let _alone = aqueduct_tls::alone(path).map_err(wrong)?;
        let mut contexts = Self::read(path)?;
        change(&mut contexts)?;
        contexts.write(path)
    }

    /// The context of this name, or the one in use, if any is.
    ///
    /// # Errors
    /// A name that no context has.
    pub(crate) fn find(mut self, name: Option<&str>) -> Result<Option<Context>, Unknown> {
        let Some(name) = name.map(str::to_owned).or_else(|| self.current.take()) else {
            return Ok(None);
        };
        let found = self.contexts.remove(&name);
        found.map(Some).ok_or(Unknown(name))
    }
}

fn unwritable(path: &Path, error: &std::io::Error) -> Refusal {
    Refusal::new("config", path.display(), format!("writable: {error}"))
}

/// A name that no context has. It could be one, so the input is not wrong.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("context = {0}: must be one of those that `aqueduct context list` shows")]
pub(crate) struct Unknown(pub(crate) String);

impl Context {
    /// How the server is known, where it speaks TLS.
    pub(crate) fn tls(&self) -> Option<TlsFiles> {
        let identity = self.tls_cert.clone().zip(self.tls_key.clone());
        let identity = identity.map(|(cert, key)| Identity { cert, key });
        self.tls_ca.clone().map(|ca| TlsFiles { ca, identity })
    }

    /// The key to show, if one is named.
    ///
    /// # Errors
    /// A file that has none.
    pub(crate) fn api_key(&self) -> Result<Option<ApiKey>, Refusal> {
        let read = |path: &PathBuf| {
            let wrong = |why: String| Refusal::new("api_key_file", path.display(), why);
            let text = fs::read_to_string(path).map_err(|it| wrong(format!("readable: {it}")))?;
            Refusal::unless_within("api_key_bytes", text.len(), 1, 2 * limits::API_KEY_BYTES_MAX)?;
            text.trim().parse::<ApiKey>().map_err(|_| wrong("a file with an API key".to_owned()))
        };
        self.api_key_file.as_ref().map(read).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(server: &str) -> Context {
        let server = server.to_owned();
        Context { server, tls_ca: None, tls_cert: None, tls_key: None, api_key_file: None }
    }

    #[test]
    fn what_is_written_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/config.json");
        assert_eq!(Contexts::read(&path).unwrap(), Contexts::default());
        let mut contexts = Contexts::default();
        contexts.contexts.insert("near".into(), context("http://near:7070"));
        contexts.contexts.insert("far".into(), context("https://far:7070"));
        assert_eq!(contexts.clone().find(None), Ok(None));
        contexts.current = Some("far".into());
        let write = |written: &mut Contexts| {
            *written = contexts.clone();
            Ok(())
        };
        Contexts::change(&path, write).unwrap();
        let read = Contexts::read(&path).unwrap();
        assert_eq!(read, contexts);
        assert_eq!(read.clone().find(None), Ok(Some(context("https://far:7070"))));
        assert_eq!(read.clone().find(Some("near")), Ok(Some(context("http://near:7070"))));
        let refusal = read.find(Some("nowhere")).unwrap_err().to_string();
        assert!(refusal.starts_with("context = nowhere"), "{refusal}");
    }

    #[test]
    fn what_is_no_file_of_contexts_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        for bad in ["", "[]", "{\"contexts\": {\"a\": {}}}", "{\"surprise\": 1}"] {
            fs::write(&path, bad).unwrap();
            let refusal = Contexts::read(&path).unwrap_err().to_string();
            assert!(refusal.starts_with("config = "), "{refusal}");
        }
    }
}
