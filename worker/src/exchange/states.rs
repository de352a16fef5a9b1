//! Partial states as bytes: exact, or compact where the dtype of the wire rounds anyway.

use aqueduct_core::{Refusal, WireDtype};
use aqueduct_engine::shards::{Place, States};
use aqueduct_kernels::fold::Node;
use aqueduct_kernels::{AttentionState, Heads};
use aqueduct_proto::convert::call::{CallHeader, Form, Kind};

use super::bytes::{Reader, Writer};
use super::codec::read;

/// How states travel in elements of `wire`: what rounds also normalises, so that o is within the
/// range of the values, and f16 can hold it.
pub(super) fn form_of(wire: WireDtype) -> Form {
    if wire == WireDtype::F32 { Form::Raw } else { Form::Compact }
}

/// Writes `states`, and their shape into `header`, which says dtype and form.
pub(super) fn put(
    header: &mut CallHeader,
    writer: &mut Writer,
    states: &States,
) -> Result<(), Refusal> {
    header.kind = Kind::States;
    header.items = states.len() as u32;
    if let Some((_, first)) = states.first() {
        (header.heads, header.head_dim) = (first.heads as u32, first.head_dim as u32);
    }
    writer.reserve(header.payload_bytes().unwrap_or(0) as usize);
    writer.u32s(states.iter().flat_map(|(node, _)| [node.level, node.first]));
    for (_, state) in states {
        let (m, l, o) = (read(&state.m)?, read(&state.l)?, read(&state.o)?);
        validate(m, l, o)?;
        match header.form {
            Form::Raw => {
                writer.f32s(m);
                writer.f32s(l);
                writer.elements("o", o, header.dtype)?;
            }
            Form::Compact => {
                writer.f32s(&state.lse());
                let rows = o.chunks_exact(state.head_dim.max(1)).zip(l);
                let unit = rows.flat_map(|(o, &l)| {
                    let l = if l > 0.0 { l } else { 1.0 }; // a row that saw nothing
                    o.iter().map(move |o| o / l)
                });
                let o: Vec<f32> = unit.collect();
                writer.elements("o", &o, header.dtype)?;
            }
        }
    }
    Ok(())
}

/// The states that answer the queries `q` of `place`.
pub(super) fn take(
    header: &CallHeader,
    reader: &mut Reader,
    (place, q): (&Place, &Heads),
) -> Result<States, Refusal> {
    let want = place.nodes();
    let seen = (0..header.items).map(|_| Ok(Node { level: reader.u32()?, first: reader.u32()? }));
    let seen = seen.collect::<Result<Vec<_>, Refusal>>()?;
    if seen != want {
        let (seen, want) = (format!("{seen:?}"), format!("{want:?}, of the shards asked about"));
        return Err(Refusal::new("nodes", seen, want));
    }
    if !want.is_empty() {
        let (heads, head_dim) = (q.heads as u32, q.head_dim as u32);
        Refusal::unless_within("heads", header.heads, heads, heads)?;
        Refusal::unless_within("head_dim", header.head_dim, head_dim, head_dim)?;
    }
    want.into_iter().map(|node| Ok((node, take_state(header, reader, q)?))).collect()
}

fn take_state(
    header: &CallHeader,
    reader: &mut Reader,
    q: &Heads,
) -> Result<AttentionState, Refusal> {
    let Heads { heads, tokens, head_dim, .. } = *q;
    let m = reader.f32s(heads * tokens)?;
    let l = match header.form {
        Form::Raw => reader.f32s(heads * tokens)?,
        Form::Compact => {
            m.iter().map(|&lse| if lse == f32::NEG_INFINITY { 0.0 } else { 1.0 }).collect()
        }
    };
    let o = reader.elements("o", heads * tokens * head_dim, header.dtype)?;
    validate(&m, &l, &o)?;
    Ok(AttentionState { heads, tokens, head_dim, m: m.into(), l: l.into(), o: o.into() })
}

/// Checks what every state is: finite, but for rows that saw nothing, which are (-inf, 0, 0). The
/// elements of o are looked at where they are written and read.
fn validate(m: &[f32], l: &[f32], o: &[f32]) -> Result<(), Refusal> {
    let head_dim = o.len().checked_div(m.len()).unwrap_or(0);
    for (row, (&m, &l)) in m.iter().zip(l).enumerate() {
        let saw_nothing = m == f32::NEG_INFINITY;
        if !saw_nothing && !m.is_finite() {
            return Err(Refusal::new("m", m, "finite or -inf"));
        }
        let l_fits = if saw_nothing { l == 0.0 } else { l > 0.0 && l.is_finite() };
        if !l_fits {
            return Err(Refusal::new("l", l, format!("0 or a sum of exp(z - m), as m = {m} says")));
        }
        let o = &o[row * head_dim..(row + 1) * head_dim];
        let stray = if saw_nothing { o.iter().find(|&&o| o != 0.0) } else { None };
        if let Some(o) = stray {
            return Err(Refusal::new("o", o, "0 where m is -inf"));
        }
    }
    Ok(())
}
