//! Which web pages a browser lets call.

use aqueduct_coordinator::http::{ApiOptions, Origins};

use super::client::{Reply, Server, answering, request_with, start_with};

async fn start(origins: &str) -> Server {
    let origins: Origins = origins.parse().unwrap();
    start_with(answering("words"), ApiOptions { origins, ..ApiOptions::new("tiny") }).await
}

/// What a browser asks before a page of `origin` may call.
async fn preflight(server: &Server, origin: &str, path: &str) -> Reply {
    let headers = format!(
        "Origin: {origin}\r\nAccess-Control-Request-Method: POST\r\n\
         Access-Control-Request-Headers: authorization,content-type,x-stainless-os\r\n"
    );
    server.send(&request_with(&headers, "OPTIONS", path, b"")).await
}

fn allowed(reply: &Reply) -> Option<&str> {
    reply.head.lines().find_map(|line| line.strip_prefix("access-control-allow-origin: "))
}

#[tokio::test]
async fn pages_call_where_their_origin_is_allowed() {
    let listed = "https://chat.example,http://a:8080";
    for (origins, origin, want) in [
        ("local", "http://localhost:5173", Some("http://localhost:5173")),
        ("local", "https://chat.example", None),
        ("*", "https://chat.example", Some("*")),
        (listed, "http://a:8080", Some("http://a:8080")),
        (listed, "http://localhost:5173", None),
        ("none", "http://localhost:5173", None),
    ] {
        let server = start(origins).await;
        let reply = preflight(&server, origin, "/v1/chat/completions").await;
        assert_eq!((reply.status, allowed(&reply)), (200, want), "{origins} {origin}");
        let headers = format!("Origin: {origin}\r\n");
        let call = request_with(&headers, "POST", "/v1/completions", b"{\"prompt\": \"a\"}");
        let reply = server.send(&call).await;
        let status = if want.is_some() { 200 } else { 403 };
        assert_eq!((reply.status, allowed(&reply)), (status, want), "{origins} {origin}");
        let call = request_with(&headers, "GET", "/v1/models", b"");
        let reply = server.send(&call).await;
        assert_eq!((reply.status, allowed(&reply)), (200, want), "{origins} {origin}");
    }
}

/// A call with a body of plain text is sent without a question before it.
#[tokio::test]
async fn a_page_of_the_server_itself_calls_where_its_address_is_no_name() {
    let server = start("none").await;
    for (host, want) in [
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("rebound.example:8080", 403),
        ("localhost:8080", 403),
    ] {
        let body = b"{\"prompt\": \"a\"}";
        let call = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n\
             Content-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        let reply = server.send(&[call.as_bytes(), body].concat()).await;
        assert_eq!(reply.status, want, "{host}");
    }
}

#[tokio::test]
async fn a_browser_is_told_what_it_asks() {
    let server = start("local").await;
    let head = preflight(&server, "http://localhost:5173", "/v1/responses").await.head;
    for line in [
        "access-control-allow-methods: get,post,delete",
        "access-control-allow-headers: authorization,content-type,x-stainless-os",
        "access-control-max-age: 600",
    ] {
        assert!(head.contains(line), "{line}: {head}");
    }
    let reply = preflight(&server, "http://localhost:5173", "/v1/nothing").await;
    assert_eq!(reply.status, 404);
}

/// It shows what others ask, to whoever may look: only its own page reads it.
#[tokio::test]
async fn no_page_reads_the_console_or_the_figures() {
    let server = start("*").await;
    for path in ["/console/live", "/console", "/metrics", "/health"] {
        let reply = preflight(&server, "https://chat.example", path).await;
        assert_eq!((reply.status, allowed(&reply)), (405, None), "{path}");
    }
}
