//! Who may call, where that is asked.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;

use super::{ApiError, ApiState};
use crate::keys::Holder;

/// Lets those in who show a key, and says to what follows who they are.
pub(super) async fn guard(
    State(state): State<ApiState>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if let Some(holder) = state.holder(request.headers())? {
        request.extensions_mut().insert(holder);
    }
    Ok(next.run(request).await)
}

impl ApiState {
    /// Who calls, where that is asked.
    pub(super) fn holder(&self, headers: &HeaderMap) -> Result<Option<Holder>, ApiError> {
        let Some(keys) = &self.0.keys else { return Ok(None) };
        let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let holder = keys.check(shown).inspect_err(|denied| {
            self.0.generator.metrics.rejected(denied.reason());
        })?;
        Ok(Some(holder))
    }
}
