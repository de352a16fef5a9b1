//! Which web pages a browser lets call.

use aqueduct_coordinator::http::{ApiOptions, Origins};
use aqueduct_coordinator::keys::{KeyFile, Keys};

use super::client::{Reply, Server, answering, request_with, start_at, start_guarded, start_with};

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
}

/// Else a page would not see that there is no such path, and take the server for gone.
#[tokio::test]
async fn a_browser_is_told_that_there_is_nothing() {
    let server = start("local").await;
    let origin = "http://localhost:5173";
    let reply = preflight(&server, origin, "/v1/nothing").await;
    assert_eq!(reply.status, 200);
    let headers = format!("Origin: {origin}\r\n");
    let reply = server.send(&request_with(&headers, "POST", "/v1/nothing", b"{}")).await;
    assert_eq!((reply.status, allowed(&reply)), (404, Some(origin)));
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

/// What a page does whose name leads to its own server first, and then here.
async fn named(server: &Server, host: &str, path: &str) -> u16 {
    let call = format!("GET {path} HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
    server.send(call.as_bytes()).await.status
}

#[tokio::test]
async fn a_page_that_makes_its_name_lead_here_reads_nothing() {
    let server = start("https://chat.example").await;
    let port = server.address.port();
    for path in ["/v1/models", "/console", "/console/requests/1/map", "/metrics", "/health", "/"] {
        let status = named(&server, &format!("Host: rebound.example:{port}\r\n"), path).await;
        assert_eq!(status, 403, "{path}");
    }
    for (host, want) in [
        (format!("Host: 127.0.0.1:{port}\r\n"), 200),
        (format!("Host: localhost:{port}\r\n"), 200),
        (format!("Host: [::1]:{port}\r\n"), 200),
        (format!("Host: host.docker.internal:{port}\r\n"), 200),
        ("Host: chat.example\r\n".into(), 200),
        ("Host: localhost\r\nHost: rebound.example\r\n".into(), 403),
        (String::new(), 200),
    ] {
        assert_eq!(named(&server, &host, "/v1/models").await, want, "{host}");
    }
    let rebound = "Host: rebound.example\r\n";
    let any = start("*").await;
    assert_eq!(named(&any, rebound, "/v1/models").await, 200, "all pages may call");
}

/// A service is called by whatever its network calls it; who must show a key is no page.
#[tokio::test]
async fn other_servers_answer_to_any_name() {
    let options = || ApiOptions::new("tiny");
    let service = start_at("0.0.0.0:0", answering("words"), options(), None).await;
    let host = "Host: aqueduct.prompts.svc.example:8080\r\n";
    assert_eq!(named(&service, host, "/v1/models").await, 200);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.json");
    KeyFile::default().write(&path).unwrap();
    let keys = Keys::open(&path).unwrap();
    let guarded = start_guarded(answering("words"), options(), Some(keys)).await;
    assert_eq!(named(&guarded, host, "/v1/models").await, 401);
    assert_eq!(named(&guarded, host, "/health").await, 200);
}
