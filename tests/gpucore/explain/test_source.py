"""Which names the text of a source gives to arguments and loaded values: none where it leaves a doubt."""

import pytest

from gpucore.explain.source import Parameter, SourceFile, Wanted, may_be

TWO = """\
namespace a {
__global__ void copy(const float* src, float* dst, int n, int ld) {
  dst[n] = src[ld];
}
}
namespace b {
__global__ void copy(float* dst, const float* src, int ld, int n) {
  dst[n] = src[ld];
}
}
"""


def names(text: str, name: str, types: str, lines: tuple[int, ...] = ()) -> list[str | None] | None:
    wanted = Wanted.of(name, [t.strip() for t in types.split(",")] if types else [])
    found = SourceFile(text.splitlines()).parameters_of(wanted, len(wanted.types), lines)
    return None if found is None else [p.name for p in found]


@pytest.mark.parametrize("scope", ["a", "b"])
def test_of_two_functions_of_one_name_the_scope_decides(scope: str) -> None:
    types = {"a": "float const*, float*, int, int", "b": "float*, float const*, int, int"}[scope]
    expected = {"a": ["src", "dst", "n", "ld"], "b": ["dst", "src", "ld", "n"]}[scope]
    assert names(TWO, f"{scope}::copy", types) == expected


OVERLOADS = """\
__global__ void f(float* out, const float* in, int n) { out[n] = in[n]; }
__global__ void f(float* out, const int* table, int count) { out[count] = table[count]; }
__global__ void f(float* out, long rows, long columns) { out[rows] = columns; }
template <typename T> __global__ void f(T* data, const T* more, int size) { data[size] = more[size]; }
"""


@pytest.mark.parametrize(
    ("name", "types", "expected"),
    [
        ("f", "float*, float const*, int", ["out", "in", "n"]),
        ("f", "float*, int const*, int", ["out", "table", "count"]),
        ("f", "float*, long, long", ["out", "rows", "columns"]),
        ("f<float>", "float*, float const*, int", ["data", "more", "size"]),
        ("f", "double*, int const*, int", None),
        ("g", "float*, int const*, int", None),
        ("other::f<double>", "double*, double const*, int", ["data", "more", "size"]),  # a macro may hide a namespace
    ],
)
def test_of_overloads_the_types_decide(name: str, types: str, expected: list[str] | None) -> None:
    assert names(OVERLOADS, name, types) == expected


BRANCHES = """\
#ifdef WIDE
__global__ void g(int* a, int* b) {
#else
__global__ void g(int* b, int* a) {
#endif
  *a = *b;
}
"""


def test_of_two_definitions_for_one_function_neither_is_taken() -> None:
    assert names(BRANCHES, "g", "int*, int*") is None
    twice = "__global__ void h(int* a, int* b) { *a = 1; }\n__global__ void h(int* b, int* a) { *a = 1; }\n"
    assert names(twice, "h", "int*, int*") is None
    assert names(twice, "h", "int*, int*", (2,)) == ["b", "a"]
    assert names(twice, "h", "int*, int*", (1, 2)) is None


@pytest.mark.parametrize("lines", [(3,), (2, 3)])
def test_a_definition_has_the_lines_of_its_code(lines: tuple[int, ...]) -> None:
    text = "__global__ void f(int* a) {\n  *a = 1;\n}\n\nint x;\n"
    assert names(text, "f", "int*", lines) == ["a"]
    assert names(text, "f", "int*", (*lines, 5)) is None


@pytest.mark.parametrize(
    "head",
    [
        "__global__ void f(%s) {",
        "__global__ void __launch_bounds__(256, 2)\nf(%s)\n{",
        'extern "C" __global__ void f(%s) {',
        "template <int N, typename T = int>\n__global__ void f(%s) {",
        "template <>\n__global__ void f<float, 4>(%s) {",
        "// void f(int wrong, int order) {\n__global__ void f(%s) {",
        "__device__ void f(int* wrong, int order) { *wrong = '('; }\n__global__ void f(%s) {",
        'const char* t = "f(int* x, int y) {";\n__global__ void f(%s) {',
        "struct S { S(int* p, int q) : p(p) {} int* p; };\n__global__ void f(%s) {",
    ],
)
def test_a_definition_is_read_however_it_is_written(head: str) -> None:
    text = head.replace("%s", "int* __restrict__ data, const unsigned int count = 3") + "\n  *data = count;\n}\n"
    template = "<float>" if "template" in head else ""
    assert names(text, f"f{template}", "int*, unsigned int") == ["data", "count"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("int n", "n"), ("const float* __restrict__ x", "x"), ("float x[]", "x"), ("std::size_t n", "n"),
        ("Pair<int, float> p", "p"), ("const __grid_constant__ CUtensorMap map", "map"), ("int", None),
        ("unsigned int", None), ("const Thing", None), ("ns::Thing", None), ("void (*f)(int)", None),
        ("typename T::Params params", "params"),
    ],
)  # fmt: skip
def test_a_parameter_that_has_no_name_gets_none(text: str, name: str | None) -> None:
    found = SourceFile([f"__global__ void f({text}) {{}}"]).parameters_of(Wanted.of("f", []), 1, [])
    assert found is not None
    assert found[0].name == name


@pytest.mark.parametrize(
    ("written", "mangled", "fits"),
    [
        ("const float*", "float const*", True), ("float*", "float const*", True), ("float", "int", False),
        ("int64_t", "long", True), ("int64_t", "int", False), ("scalar_t*", "float*", True), ("T", "float*", True),
        ("T*", "float", False), ("unsigned", "unsigned int", True), ("unsigned long long", "unsigned long", True),
        ("int", "unsigned int", False), ("S", "ns::S", True), ("S", "S*", False), ("S*", "ns::S<int>*", True),
        ("char", "signed char", False), ("bool", "bool", True), ("double", "float", False),
    ],
)  # fmt: skip
def test_a_type_that_may_be_another_name_fits_and_one_that_cannot_does_not(
    written: str, mangled: str, fits: bool
) -> None:
    assert may_be(written, mangled) is fits


def name_in(statement: str, base: str = "t", element: str = "int const", *, atomic: bool = False) -> str | None:
    lines = ["__global__ void f(const int* t, int n, int i) {", *statement.split("\n"), "}"]
    own = (Parameter("const int*", "t"), Parameter("int", "n"), Parameter("int", "i"))
    return SourceFile(lines).name_of_loaded(2, base, element, own, atomic)


@pytest.mark.parametrize(
    "statement",
    [
        "int k = t[i];", "const int k = t[i * 3 + n];", "auto k = t[i];", "int k = __ldg(&t[i]);", "int k = (int)t[i];",
        "int k = static_cast<int>(t[i]);", "int k = (t[i]);", "long k = t[i];", "int j = i * 2, k = t[j];",
        "int k =\n    t[i];", "int k = __ldcs( &t[i] );", "int k = t[u[i]];", "{ int k = t[i]; }", "int32_t k = t[i];",
    ],
)  # fmt: skip
def test_a_variable_that_is_declared_as_the_element_has_its_value(statement: str) -> None:
    assert name_in(statement) == "k"


@pytest.mark.parametrize(
    "statement",
    [
        "float v = x[t[i]];", "int k = t[i] * 3 + 7;", "int k = min(max(t[i], 0), n);", "int a = t[i], b = t[i + 64];",
        "int k = m[i] ? t[i] : b[i];", "int k = t[t[i]];", "int k = t[i][n];", "int k = t[i].x;", "k = t[i];",
        "int k = -t[i];", "int k = t[i]; k += 1;", "int k = t[i];\n  ++k;", "for (int k = t[i]; k < n; ++k) f(k);",
        "int k = t[i];\n  read(&k);", "char k = t[i];", "unsigned k = t[i];", "short k = (short)t[i];",
        "int k = (short)t[i];", "const int& k = t[i];", "s[k] = t[i];", "p->k = t[i];", "int k[2] = {t[i]};",
        "return t[i];", "int k = t[i];\n  { int k = 3; }", "int k = t[i] + 0;", "float k = t[i];", "bool k = t[i];",
        "int k = atomicAdd(&t[i], 1);", "int k = t[i], j = 2 * k + t[n];", "int k = ~t[i];", "int k = f(t[i]);",
        "// int k = t[i];", "k == t[i];", "auto f = [](int k) { return k; }; int k = t[i];", "int *k = &t[i];",
    ],
)  # fmt: skip
def test_whatever_else_a_line_does_with_an_element_gives_it_no_name(statement: str) -> None:
    assert name_in(statement) is None


def test_an_atomic_gives_the_old_value_of_the_element() -> None:
    assert name_in("int s = atomicAdd(&t[i], 3);", atomic=True) == "s"
    assert name_in("int s = atomicAdd(t, 3);", atomic=True) == "s"
    assert name_in("int s = 1 + atomicAdd(&t[i], 3);", atomic=True) is None
    assert name_in("int s = t[i];", atomic=True) is None


@pytest.mark.parametrize(
    ("statement", "element", "name"),
    [
        ("int k = t[i];", "long const", None), ("long k = t[i];", "int const", "k"), ("int k = t[i];", "short", "k"),
        ("int k = t[i];", "unsigned char", "k"), ("int k = t[i];", "unsigned int", None),
        ("unsigned k = t[i];", "signed char", None), ("int2 k = t[i];", "int2 const", "k"),
        ("float* k = t[i];", "float*", "k"), ("const float* k = reinterpret_cast<const float*>(t[i]);", "long", "k"),
        ("float* k = (float*)t[i];", "int", None), ("uint64_t k = t[i];", "unsigned long", "k"),
        ("index_t k = t[i];", "int", None), ("int k = t[i];", "float", None), ("size_t k = t[i];", "unsigned int", "k"),
    ],
)  # fmt: skip
def test_a_variable_that_cannot_have_the_number_of_the_element_is_not_it(
    statement: str, element: str, name: str | None
) -> None:
    assert name_in(statement, element=element) == name


@pytest.mark.parametrize(
    ("body", "carried"),
    [
        ("for (int q = 0; q < n; ++q) {\n    int k = t[q];\n    s += x[k];\n  }", False),
        ("for (int q = 0; q < n; ++q) {\n    int k = t[q];\n    s += x[last];\n    last = k;\n  }", True),
        ("while (i < n) {\n    int k = t[i];\n    s += x[last] + x[k]; last = k;\n  }", True),
        ("for (;;) { i += 1; }\n    int k = t[i];\n    s += x[j];\n", False),
    ],
)
def test_a_value_of_the_turn_before_has_another_variable(body: str, carried: bool) -> None:
    lines = ["__global__ void f(const int* t, const float* x, int n, int i) {", *f"  {body}".split("\n"), "}"]
    assert SourceFile(lines).may_be_of_another_turn(3, "k", 4) is carried


def test_a_variable_of_the_type_that_the_pointer_points_to_has_its_number() -> None:
    text = "template <typename I> __global__ void f(const I* t, int i) {\n  const I k = t[i];\n}"
    own = (Parameter("const I*", "t"), Parameter("int", "i"))
    assert SourceFile(text.splitlines()).name_of_loaded(2, "t", "long", own, False) == "k"
