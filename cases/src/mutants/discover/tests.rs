//! Every operator on a small text: what stands there, and what the mutants put in its place.

use super::*;

/// The changed texts that one operator makes of a function body, with `·` for what stays in front and behind left out.
fn replacements(body: &str, operator: Operator) -> Vec<String> {
    let text = format!("void f() {{\n{body}\n}}\n");
    let mutants = mutants_of("test.cu", &text).unwrap();
    let made = mutants.iter().filter(|mutant| mutant.operator == operator);
    made.map(|mutant| {
        let changed = mutant.apply(&text);
        changed.lines().filter(|line| !["void f() {", "}"].contains(line)).collect::<Vec<_>>().join("\n")
    })
    .collect()
}

fn check(operator: Operator, body: &str, expected: &[&str]) {
    assert_eq!(replacements(body, operator), expected, "{operator} on `{body}`");
}

#[test]
fn synchronisation() {
    check(Operator::Barrier, "__syncthreads();", &[";"]);
    check(Operator::Barrier, "g();", &[]);
    check(Operator::AsyncCopy, "copy_async_wait<1>();", &[";"]);
    check(Operator::AsyncCopy, "copy_async_commit();", &[";"]);
    check(Operator::WaitLess, "copy_async_wait<0>();", &["copy_async_wait<1>();"]);
    check(Operator::Shuffle, "x = __shfl_xor_sync(m, v, 4);", &["x = (v);"]);
}

#[test]
fn arithmetic_and_comparisons() {
    check(Operator::Arithmetic, "x = a + b;", &["x = a - b;"]);
    check(Operator::Arithmetic, "x = a / b;", &["x = a % b;"]);
    check(Operator::Arithmetic, "x = a / 2.0f;", &["x = a * 2.0f;"]);
    check(Operator::Arithmetic, "x += a;", &["x -= a;"]);
    check(Operator::Bitwise, "x = a >> 4;", &["x = a << 4;"]);
    check(Operator::Boundary, "x = a < b;", &["x = a <= b;"]);
    // A choice between what is compared is the same at the boundary, also through a guard, a cast or a common term.
    check(Operator::Boundary, "x = a < b ? a : b;", &[]);
    check(Operator::Boundary, "x = a > b ? b : a;", &[]);
    check(Operator::Boundary, "x = a != a || a > b ? a : b;", &[]);
    check(Operator::Boundary, "x = a + n < b ? a + n - 1 : b - 1;", &[]);
    check(Operator::Boundary, "x = a < b ? static_cast<i32>(a) : b;", &[]);
    check(Operator::Boundary, "x = a < b ? c : b;", &["x = a <= b ? c : b;"]);
    check(Operator::Boundary, "x = (a < b) == c ? a : b;", &["x = (a <= b) == c ? a : b;"]);
    check(
        Operator::Boundary,
        "x = c ? a < b : b < a;",
        &["x = c ? a <= b : b < a;", "x = c ? a < b : b <= a;"],
    );
    check(Operator::Equality, "x = a == b;", &["x = a != b;"]);
    check(Operator::Logical, "x = a && !b;", &["x = a || !b;", "x = a && b;"]);
}

#[test]
fn control() {
    check(Operator::Branch, "if (a) { g(); }", &["if (true) { g(); }", "if (false) { g(); }"]);
    check(Operator::Ternary, "x = a ? b : c;", &["x = (b);", "x = (c);"]);
    check(Operator::LoopToIf, "for (;;) { g(); }", &["for (;;) { g(); break; }"]);
    check(Operator::Statement, "x = a;", &[";"]);
    check(Operator::Statement, "g(a);", &[";"]);
    check(Operator::Statement, "__syncthreads();", &[]);
}

#[test]
fn addressing() {
    check(
        Operator::OffByOne,
        "const i32 key = a;",
        &["const i32 key = (a) + 1;", "const i32 key = (a) - 1;"],
    );
    check(Operator::OffByOne, "const float key = a;", &[]);
    check(Operator::OffByOne, "x = a < b;", &["x = a < b - 1;"]);
    check(Operator::SwapIndex, "x = a[i][j];", &["x = a[j][i];"]);
    check(Operator::SwapIndex, "x = blockIdx.y;", &["x = blockIdx.x;"]);
    check(Operator::SwapStride, "x = p.k_page_stride;", &["x = p.k_slot_stride;"]);
    check(Operator::SwapStride, "x = p.q_head_stride;", &["x = p.q_row_stride;"]);
    check(
        Operator::SwapKv,
        "x = p.k_scale; y = p.v_scale;",
        &["x = p.v_scale; y = p.v_scale;", "x = p.k_scale; y = p.k_scale;"],
    );
    check(Operator::SwapKv, "Quad v; x = v.x;", &[]);
    check(Operator::DropTerm, "x = page * s + slot * t;", &["x = (page * s);", "x = (slot * t);"]);
    check(Operator::DropTerm, "x = a + b;", &[]);
    check(Operator::HeadMapping, "x = k_scales[kv_head];", &["x = k_scales[0];"]);
    check(Operator::HeadMapping, "x = num_q_heads / num_kv_heads;", &["x = 1;"]);
    check(Operator::NarrowInteger, "x = static_cast<i64>(a) * b;", &["x = (a) * b;"]);
    check(Operator::NarrowInteger, "const i64 x = a;", &["const i32 x = a;"]);
}

#[test]
fn numeric() {
    check(Operator::DropScale, "x = a * k_scale;", &["x = a;"]);
    check(Operator::DropScale, "x = __fdiv_rn(a, softcap);", &["x = (a);"]);
    check(Operator::DropRescale, "const float weight = exp2_weight(a);", &["const float weight = 1.0f;"]);
    check(Operator::Seed, "x = negative_infinity();", &["x = -1.0e4f;"]);
    check(Operator::ExpBase, "x = exp_f32(a);", &["x = exp2_f32(a);"]);
    check(Operator::Reciprocal, "x = __fdiv_rn(a, b);", &["x = (a * __fdiv_rn(1.0f, b));"]);
    check(Operator::Rounding, "x = a + ((b >> 3) & 1u);", &["x = a + (1u);"]);
    check(Operator::Format, "x = KV_FORMAT::decode(a);", &["x = E4m3::decode(a);", "x = E5m2::decode(a);"]);
    check(Operator::Format, "x = KV_FORMAT::bytes;", &[]);
    check(
        Operator::TemplateLiteral,
        "x = g<2, true>(a);",
        &["x = g<1, true>(a);", "x = g<3, true>(a);", "x = g<2, false>(a);"],
    );
}

#[test]
fn nothing_dead_is_changed() {
    let text = "#ifndef ATTEST_SIMT\nint g() { return a + b; }\n#endif\nstatic_assert(a + b == 2, \"c\");\n// a + b\n";
    assert_eq!(mutants_of("test.cu", text).unwrap(), []);
}

#[test]
fn an_unreadable_file_is_named_with_its_line() {
    let error = mutants_of("test.cu", "int f() {\n  return 1 +;\n}\n").unwrap_err().to_string();
    assert!(error.starts_with("test.cu:2"), "{error}");
}

#[test]
fn every_mutant_of_every_kernel_has_its_own_name_and_changes_its_own_text() {
    let sources = SourceSet::embedded();
    let all = discover(&sources).unwrap();
    assert!(all.len() >= 400, "{}", all.len());
    let names: HashSet<&str> = all.iter().map(|mutant| mutant.id.as_str()).collect();
    assert_eq!(names.len(), all.len());
    for mutant in &all {
        let text = sources.get(&mutant.file).unwrap();
        assert_eq!(text[mutant.from..mutant.to], mutant.original);
        assert_ne!(mutant.apply(text), text, "{}", mutant.id);
        let diff = mutant.diff(text, "kernels/cuda");
        assert!(diff.lines().any(|line| line.starts_with('+') && !line.starts_with("+++")), "{diff}");
    }
    for operator in Operator::ALL {
        assert!(all.iter().any(|mutant| mutant.operator == *operator), "no mutant by {operator}");
    }
    assert!(all.iter().any(|mutant| mutant.function == "scalar_attention"));
}
