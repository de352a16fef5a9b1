//! Who may call, where that is asked.

use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;

use super::{ApiError, ApiState};

/// Lets those in who show a key, and says to what follows who they are.
pub(super) async fn guard(
    State(state): State<ApiState>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if let Some(keys) = &state.0.keys {
        let shown = request.headers().get(header::AUTHORIZATION);
        let holder = keys.check(shown.and_then(|value| value.to_str().ok()));
        let holder = holder.inspect_err(|denied| {
            state.0.generator.metrics.rejected(denied.reason());
        })?;
        request.extensions_mut().insert(holder);
    }
    Ok(next.run(request).await)
}
