//! The console's page and what it asks for.

use aqueduct_core::RequestId;
use serde_json::json;

use super::client::{answering, start};

#[tokio::test]
async fn the_page_needs_nothing_from_elsewhere() {
    let server = start(answering("x")).await;
    let moved = server.get("/").await;
    assert!(moved.status == 307 && moved.head.contains("location: /console"));
    for path in ["", "/style.css", "/app.js", "/map.js", "/parts.js"] {
        let file = server.get(&format!("/console{path}")).await;
        assert_eq!(file.status, 200, "{path}");
        assert!(file.head.contains("content-security-policy: default-src 'none'"), "{path}");
        let elsewhere = file.body.replace("http://www.w3.org/2000/svg", "");
        assert!(!elsewhere.contains("//www.") && !elsewhere.contains("http"), "{path}");
    }
}

#[tokio::test]
async fn a_request_has_a_map_if_it_asks_for_one() {
    let server = start(answering(" was")).await;
    let request = format!("/console/requests/{}", RequestId(7));
    server.completion(json!({ "prompt": "a" })).await;
    assert_eq!(server.get(&format!("{request}/map")).await.status, 404);
    let asked = json!({ "prompt": "the cat", "max_tokens": 9, "aqueduct": { "memory_map": true } });
    assert_eq!(server.completion(asked).await.status, 200);
    let map = server.get(&format!("{request}/map")).await.json();
    let text = |of: &str| {
        let pieces = map[of].as_array().unwrap().iter().map(|piece| piece.as_str().unwrap());
        pieces.collect::<String>()
    };
    assert_eq!((text("pieces"), text("completion")), ("the cat".to_owned(), " was".to_owned()));
    assert_eq!((&map["layers"], &map["kv_heads"]), (&json!(1), &json!(1)));
    assert_eq!(map["first_layer"], json!(0));
    let head = server.get(&format!("{request}/map/0/0")).await.json();
    let kept = json!({ "positions": [0], "weights": [2.0], "left_out": 3 });
    assert_eq!(head, json!({ "kept": kept, "looks": [] }));
    for (path, param) in [
        ("map/1/0", "layer"),
        ("map/0/1", "head"),
        ("map?from=99", "from"),
        ("map?tokens=0", "tokens"),
        ("map?colour=red", "query"),
    ] {
        let reply = server.get(&format!("{request}/{path}")).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{path}");
    }
}
