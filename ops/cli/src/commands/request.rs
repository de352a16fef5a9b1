//! `aqueduct request`: what a server is at.

use aqueduct_client::operator::{
    ListRequestsRequest, RequestEntry, RequestList, RequestTrace, RequestView,
};
use aqueduct_client::{Client, ClientError};

use crate::args::{RequestCancelArgs, RequestCommand, RequestListArgs, RequestNameArgs};
use crate::lines;
use crate::report::percent;
use crate::shown::{self, Columns, Shown, age, fields, section};

/// Asks the server.
///
/// # Errors
/// What the server refuses, or its silence; a request that it does not know.
pub(crate) async fn run(command: RequestCommand) -> anyhow::Result<()> {
    match command {
        RequestCommand::List(args) => list(args).await,
        RequestCommand::Show(RequestNameArgs { server, output, request }) => {
            let client = server.connect().await?;
            shown::show(&output, async || Ok(client.show_request(&request).await?)).await
        }
        RequestCommand::Trace(RequestNameArgs { server, output, request }) => {
            let client = server.connect().await?;
            shown::show(&output, async || Ok(client.trace_request(&request).await?)).await
        }
        RequestCommand::Cancel(args) => cancel(args).await,
    }
}

async fn list(args: RequestListArgs) -> anyhow::Result<()> {
    let client = args.server.connect().await?;
    let asked = ListRequestsRequest {
        state: args.state.clone().unwrap_or_default(),
        ended: args.all || args.state.as_deref().is_some_and(has_ended),
        limit: args.chunk_size,
        after: String::new(),
    };
    shown::show(&args.output, async || Ok(all_pages(&client, asked.clone()).await?)).await
}

/// Whether requests of this state are told of as ended only.
fn has_ended(state: &str) -> bool {
    matches!(state, "finished" | "failed" | "cancelled")
}

/// All pages as one.
async fn all_pages(
    client: &Client,
    mut asked: ListRequestsRequest,
) -> Result<RequestList, ClientError> {
    let mut all = client.list_requests(asked.clone()).await?;
    while !all.next.is_empty() {
        asked.after = std::mem::take(&mut all.next);
        let page = client.list_requests(asked.clone()).await?;
        all.requests.extend(page.requests);
        all.next = page.next;
    }
    Ok(all)
}

async fn cancel(args: RequestCancelArgs) -> anyhow::Result<()> {
    let client = args.server.connect().await?;
    lines::each(&args.requests, async |request| {
        Ok(format!("request {} cancelled", client.cancel_request(request).await?.id))
    })
    .await
}

impl Shown for RequestList {
    fn table(&self, wide: bool) -> String {
        let mut headings = vec!["ID", "STATE", "PROMPT", "CHUNKS", "TOKENS", "HOME"];
        if wide {
            headings.extend(["CALLER", "PRIORITY", "CACHED", "POLICY", "WORKERS", "ERROR"]);
        }
        headings.push("AGE");
        let mut columns = Columns::new(&headings);
        for request in &self.requests {
            let mut cells = vec![
                request.id.clone(),
                request.state.clone(),
                request.prompt_tokens.to_string(),
                format!("{}/{}", request.chunks_done, request.chunk_count),
                generated(request),
                request.home.clone(),
            ];
            if wide {
                cells.extend([
                    request.caller_id.clone(),
                    request.priority.to_string(),
                    request.cached_tokens.to_string(),
                    request.policy.clone(),
                    request.workers.join(","),
                    request.error.clone(),
                ]);
            }
            cells.push(age(request.age_seconds));
            columns.row(cells);
        }
        columns.render()
    }
}

/// How many tokens there are, of how many.
fn generated(request: &RequestEntry) -> String {
    let most = u64::from(request.choices) * u64::from(request.max_tokens);
    format!("{}/{most}", request.output_tokens)
}

fn about(request: &RequestEntry) -> String {
    let queued = age(request.queue_seconds);
    fields(&[
        ("Id", request.id.clone()),
        ("Caller's id", request.caller_id.clone()),
        ("State", request.state.clone()),
        ("Error", request.error.clone()),
        ("Priority", request.priority.to_string()),
        ("Prompt", format!("{} tokens, {} cached", request.prompt_tokens, request.cached_tokens)),
        (
            "Chunks",
            format!(
                "{} of {} done, {} again",
                request.chunks_done, request.chunk_count, request.chunks_retried
            ),
        ),
        ("Generated", generated(request)),
        ("Policy", request.policy.clone()),
        ("Exchange", request.exchange.clone()),
        ("Home", request.home.clone()),
        ("Workers", request.workers.join(", ")),
        (
            "Age",
            format!(
                "{} of {}, {queued} in the queue",
                age(request.age_seconds),
                age(request.deadline_seconds)
            ),
        ),
    ])
}

impl Shown for RequestView {
    fn table(&self, wide: bool) -> String {
        let mut chunks = Columns::new(&["CHUNK", "EPOCH", "STATE", "LAYERS", "BUSY", "WORKER"]);
        for chunk in &self.chunks {
            chunks.row(vec![
                chunk.chunk_idx.to_string(),
                chunk.epoch.to_string(),
                chunk.state.clone(),
                format!("{}/{}", chunk.layers_done, self.layers),
                format!("{:.3}s", chunk.busy_seconds),
                chunk.worker.clone(),
            ]);
        }
        let mut completions = Columns::new(&["COMPLETION", "STATE", "TOKENS"]);
        for it in &self.completions {
            completions.row(vec![it.choice.to_string(), it.state.clone(), it.tokens.to_string()]);
        }
        let mut retained = Columns::new(&["LAYER", "RETAINED"]);
        for (layer, mass) in self.retained.iter().enumerate().filter(|_| wide) {
            let share = if mass.total > 0.0 { mass.kept / mass.total } else { 1.0 };
            retained.row(vec![layer.to_string(), percent(share)]);
        }
        let about = self.request.as_ref().map_or_else(String::new, about);
        let lists = section("Chunks", &chunks) + &section("Completions", &completions);
        about + &lists + &section("Attention mass that was kept", &retained)
    }
}

impl Shown for RequestTrace {
    fn table(&self, _wide: bool) -> String {
        let mut columns = Columns::new(&["AT", "STEP", "WORKER", "ABOUT"]);
        for step in &self.steps {
            columns.row(vec![
                format!("{:.3}s", step.at_seconds),
                step.step.clone(),
                step.worker.clone(),
                step.about.clone(),
            ]);
        }
        let forgotten = match self.forgotten {
            0 => String::new(),
            some => format!("{some} steps between the first and the last ones are forgotten\n"),
        };
        columns.render() + &forgotten
    }
}
