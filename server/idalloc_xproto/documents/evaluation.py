"""Evaluates criteria on documents as MySQL does.

MySQL's X Plugin writes an expression as SQL, and SQL has types: the operands' types decide how an
operator converts and compares. So an expression is compiled once, by types, and then run for each
document.
"""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from idalloc_xproto.documents.comparison import (
    EXACT,
    JSON_RULE,
    STRICT_DOUBLES,
    TEXTS,
    Check,
    Rule,
    compare_json,
    contains,
    no_check,
    rule_of,
)
from idalloc_xproto.documents.conversion import AS_JSON, AS_TEXT, Converters, Type, bytewise
from idalloc_xproto.documents.criteria import ID, NULL, ArrayOf, Call, Field, Key, Node, NotJson, ObjectOf, Value, find
from idalloc_xproto.documents.errors import DocumentsError, InvalidEscape, NotServed
from idalloc_xproto.documents.json_text import Json, plain_text
from idalloc_xproto.documents.like import like_pattern

_SIGNED = 2**63

# Returns the value of an expression for a document, or NULL.
Run: TypeAlias = Callable[[Json], Any]


class Expression(NamedTuple):
    """A compiled expression."""

    type: Type  # of its values
    run: Run
    is_constant: bool = False  # whether the value is the same for all documents


class Context(NamedTuple):
    """Where an expression is in a statement."""

    # Whether the statement writes. Then a value that is converted to a number must be one.
    is_strict: bool = False
    # Whether MySQL may use the key's index. Then it compares ``_id`` with constant texts as bytes.
    is_indexed: bool = False
    # Whether the expression is the condition of the statement, or an operand of AND and OR in it.
    # Then NULL is as false.
    is_condition: bool = False
    # Called before work that may take long: between large values, not for each document.
    check: Check = no_check

    @property
    def inside(self) -> "Context":
        """The context of the operands of a comparison."""
        return self._replace(is_condition=False)

    @property
    def hidden(self) -> "Context":
        """The context of operands that are hidden from the index."""
        return Context(self.is_strict, check=self.check)


def compile_node(node: Node, context: Context) -> Expression:
    """Return an expression that can be run.

    Raises:
        NotServed: MySQL's rule for its types is not known.
    """
    if isinstance(node, Value):
        return _constant(Type.JSON if node.is_json else _TYPES[type(node.value)], node.value)
    if isinstance(node, Field):
        return Expression(Type.JSON, _reader(node))
    if isinstance(node, NotJson):
        return Expression(Type.JSON, node.fail)
    if isinstance(node, Key):
        return Expression(Type.KEY, lambda document: plain_text(document["_id"]))  # type: ignore[call-overload,index]
    if isinstance(node, ObjectOf):
        members = [(name, json_of(member, context)) for name, member in node.members]
        return _built(node, lambda document: {name: member(document) for name, member in members})
    if isinstance(node, ArrayOf):
        items = [json_of(item, context) for item in node.items]
        return _built(node, lambda document: [item(document) for item in items])
    return _call(node, context)


def condition_of(node: Node, *, is_strict: bool = False, check: Check = no_check) -> Run:
    """Return the function that evaluates a condition for a document: to True, False or NULL.

    Raises:
        NotServed: MySQL's rule for its types is not known.
    """
    return _truth(node, Context(is_strict, is_indexed=True, is_condition=True, check=check))


def json_of(node: Node, context: Context) -> Run:
    """Return the function that evaluates an expression to JSON, with JSON's null for NULL.

    Raises:
        NotServed: MySQL's rule for its types is not known.
    """
    run = _converted(compile_node(node, context.hidden), AS_JSON)

    def value(document: Json) -> Any:
        found = run(document)
        return None if found is NULL else found

    return value


def _constant(kind: Type, value: Any) -> Expression:
    return Expression(kind, lambda _: value, is_constant=True)


def is_constant(node: Node) -> bool:
    """Return whether the value of an expression is the same for all documents."""
    if isinstance(node, Call):
        is_key_null = node.operator in ("is", "is_not") and node.operands == (Key(), Value(NULL))
        return is_key_null or all(map(is_constant, node.operands))
    if isinstance(node, ArrayOf):
        return all(map(is_constant, node.items))
    if isinstance(node, ObjectOf):
        return all(is_constant(member) for _, member in node.members)
    return isinstance(node, Value | NotJson)


_TYPES: dict[type, Type] = {
    type(NULL): Type.NULL,
    bool: Type.BOOLEAN,
    int: Type.INTEGER,
    Decimal: Type.DECIMAL,
    float: Type.DOUBLE,
    str: Type.LITERAL,
}


def _call(node: Call, context: Context) -> Expression:
    run = OPERATORS[node.operator](node.operands, context)
    if not is_constant(node):
        return Expression(Type.BOOLEAN, run)
    if context.is_strict:
        run(None)  # an error in a constant condition fails the statement
    return _folded(Type.FOLDED, run)


def _built(node: Node, run: Run) -> Expression:
    return _folded(Type.JSON, run) if is_constant(node) else Expression(Type.JSON, run)


def _folded(kind: Type, run: Run) -> Expression:
    """Evaluate a constant once; if that fails, return an expression that fails when it is run."""
    try:
        return _constant(kind, run(None))
    except DocumentsError:
        return Expression(kind, run)


def _reader(field: Field) -> Run:
    match field.path:
        case (str() as name,):
            return lambda document: document.get(name, NULL)  # type: ignore[union-attr]
        case path:
            return lambda document: find(document, path)


def _unquoted(node: Node, context: Context) -> Expression:
    """Compile a node; a field is compiled to its text, as with JSON_UNQUOTE."""
    if not isinstance(node, Field) or not node.path:
        return compile_node(node, context)
    read = _reader(node)
    check = context.check

    def run(document: Json) -> Any:
        value = read(document)
        if value is NULL or type(value) is str:
            return value
        if type(value) in (list, dict):
            check()
        return plain_text(value)

    return Expression(Type.TEXT, run)


def _by_key(node: Node, expression: Expression, others: Sequence[Expression], context: Context) -> Expression:
    """Return the key's column in place of ``_id`` if MySQL uses its index for constant texts."""
    is_indexed = context.is_indexed and node == ID and all(each.is_constant and each.type in TEXTS for each in others)
    return compile_node(Key(), context) if is_indexed else expression


def _converted(expression: Expression, converters: Converters) -> Run:
    """Return the function that evaluates and converts an expression; it converts a constant once.

    If the conversion of a constant fails, the function fails when it is run.
    """
    kind, run, is_constant = expression
    convert = converters.get(kind)
    if convert is None:
        return run
    if is_constant:
        given = run(None)
        try:
            constant = given if given is NULL else convert(given)
        except DocumentsError:
            return lambda _: convert(given)
        return lambda _: constant

    def converted(document: Json) -> Any:
        value = run(document)
        return NULL if value is NULL else convert(value)

    return converted


def _truth(node: Node, context: Context) -> Run:
    """Return the function that evaluates whether a value is true: not equal to the number 0."""
    expression = compile_node(node, context)
    if expression.type in (Type.BOOLEAN, Type.FOLDED, Type.NULL):
        return expression.run
    if expression.type is Type.KEY:
        raise NotServed("the column _id as a condition")
    return _difference(expression, _constant(Type.INTEGER, 0), lambda difference: difference != 0, context)


def _difference(left: Expression, right: Expression, holds: Callable[[int], bool], context: Context) -> Run:
    """Return the function that compares the values of two expressions."""
    types = {left.type, right.type} - {Type.NULL}
    if types == {Type.JSON, Type.FOLDED}:
        raise NotServed("comparison with a condition that has no field")
    has_null = Type.NULL in (left.type, right.type)
    rule = JSON_RULE if has_null or Type.JSON in types else rule_of(types, context.is_strict)
    one = _converted(left, rule.converters)
    other = _converted(right, rule.converters)
    difference = rule.difference
    if rule is JSON_RULE:
        difference = partial(compare_json, check=context.check)

    def run(document: Json) -> Any:
        this = one(document)
        if this is NULL:
            return NULL
        that = other(document)
        return NULL if that is NULL else holds(difference(this, that))

    return run


_Compile: TypeAlias = Callable[[Sequence[Node], Context], Run]


def _is_decided(left: Node, right: Node, context: Context) -> bool:
    """Return whether MySQL knows that two operands are equal, and so evaluates neither."""
    return context.is_condition and left == right and repr(left) == repr(right)  # 1 == True


def _comparison(holds: Callable[[int], bool], *, may_be_indexed: bool = True) -> _Compile:
    def compile_(operands: Sequence[Node], context: Context) -> Run:
        left, right = operands
        if not holds(0) and _is_decided(left, right, context):
            return _DECIDED[False]
        return _compare(left, right, holds, context.inside if may_be_indexed else context.hidden)

    return compile_


def _compare(left: Node, right: Node, holds: Callable[[int], bool], context: Context, *, unquote: bool = False) -> Run:
    """Return the function that compares two operands; ``unquote`` compares all fields as texts."""
    one, other = (
        _unquoted(node, context) if unquote or node == ID else compile_node(node, context) for node in (left, right)
    )
    return _difference(_by_key(left, one, [other], context), _by_key(right, other, [one], context), holds, context)


def _not(run: Run) -> Run:
    def negated(document: Json) -> Any:
        known = run(document)
        return known if known is NULL else not known

    return negated


def _negated(compile_: _Compile) -> _Compile:
    return lambda operands, context: _not(compile_(operands, context))


# The operators whose value does not depend on the document.
_DECIDED: dict[bool, Run] = {False: lambda _: False, True: lambda _: True}


def _and_or(*, decisive: bool) -> _Compile:
    """Return AND for False, OR for True: ``decisive`` is the operand that decides alone.

    Constant operands are evaluated first, so that an error in them fails the whole statement.
    """

    def compile_(operands: Sequence[Node], context: Context) -> Run:
        runs = [_truth(each, context) for each in operands]
        may_be_null = not context.is_condition
        deciding = (decisive,) if decisive or may_be_null else (False, NULL)
        for node, run in zip(operands, runs, strict=True):
            if run is _DECIDED[decisive] or (is_constant(node) and run(None) in deciding):
                return _DECIDED[decisive]
        left, right = runs

        def run_both(document: Json) -> Any:
            one = left(document)
            if one in deciding:
                return decisive
            other = right(document)
            if other is decisive:
                return decisive
            return NULL if one is NULL or other is NULL else not decisive

        return run_both

    return compile_


# The operator that is true where another one is false, which MySQL writes in place of NOT.
_OPPOSITES = {"==": "!=", "<": ">=", ">": "<=", "&&": "||", "in": "not_in", "between": "not_between", "is": "is_not"}
_OPPOSITES |= {opposite: name for name, opposite in _OPPOSITES.items()}


def _negation(operands: Sequence[Node], context: Context) -> Run:
    (operand,) = operands
    if not isinstance(operand, Call):
        return _not(_truth(operand, context))
    if operand.operator in ("not", "!"):
        return _truth(operand.operands[0], context)
    opposite = _OPPOSITES.get(operand.operator)
    if opposite is None:
        return _not(_truth(operand, context))
    inner = operand.operands
    if operand.operator in ("&&", "||"):
        inner = tuple(Call("not", (each,)) for each in inner)
    return OPERATORS[opposite](inner, context)


def _is(operands: Sequence[Node], context: Context) -> Run:
    tested, expected = operands
    wanted = expected.value if isinstance(expected, Value) else NULL
    if isinstance(tested, Key) and wanted is NULL:
        return _DECIDED[False]
    run = compile_node(tested, context.hidden).run if wanted is NULL else _truth(tested, context.hidden)
    return lambda document: run(document) is wanted


def _in(operands: Sequence[Node], context: Context) -> Run:
    first, *others = operands
    context = context.inside
    if not others[1:]:
        return _in_one(first, others[0], lambda difference: difference == 0, context)
    items = [_unquoted(each, context) for each in others]
    tested = _by_key(first, _unquoted(first, context), items, context)
    rules = _rules_in(tested, items, context)
    if STRICT_DOUBLES in rules.values():
        return _in_sequence(tested, items, rules)
    read = tested.run
    by_rule: dict[Rule, list[Expression]] = {}
    for item in items:
        by_rule.setdefault(rules[item.type], []).append(item)
    groups = [_group(tested, rule, some) for rule, some in by_rule.items()]

    def run(document: Json) -> Any:
        if read(document) is NULL:
            return NULL
        found = [group(document) for group in groups]
        return True if True in found else NULL if NULL in found else False

    return run


def _in_sequence(tested: Expression, items: Sequence[Expression], rules: Mapping[Type, Rule]) -> Run:
    """Return an ``in`` that evaluates its items one by one, so that the first error is MySQL's."""
    tested_as = {rule: _converted(tested, rule.converters) for rule in rules.values()}
    each_one = [
        (tested_as[rule], _converted(item, rule.converters), rule.difference)
        for item in items
        for rule in [rules[item.type]]
    ]

    def run(document: Json) -> Any:
        known: Any = False
        for read, other, difference in each_one:
            value = read(document)
            that = other(document)
            if value is NULL or that is NULL:
                known = NULL
            elif difference(value, that) == 0:
                return True
        return known

    return run


def _rules_in(tested: Expression, items: Sequence[Expression], context: Context) -> dict[Type, Rule]:
    """Return, for each type of items, the rule that compares the tested value with them.

    Raises:
        NotServed: One of them is JSON, or they are numbers that MySQL compares sometimes by bits,
            sometimes by value.
    """
    kinds = {item.type for item in items}
    types = {tested.type, *kinds}
    if Type.JSON in types:
        raise NotServed("in with several values, one of which is an array, an object or a JSON text")
    if tested.type in EXACT:
        exact = [each.run(None) for each in (tested, *items) if each.is_constant and each.type in EXACT]
        numbers = [number for number in exact if number is not NULL]
        if min(numbers, default=0) < 0 and max(numbers, default=0) >= _SIGNED:
            raise NotServed("in with negative numbers beside numbers from 2^63 on")

    def rule(two: set[Type]) -> Rule:
        if Type.NULL in two:
            return JSON_RULE
        return rule_of(types & TEXTS if two <= TEXTS else two, context.is_strict)

    return {kind: rule({tested.type, kind}) for kind in kinds}


def _not_in(operands: Sequence[Node], context: Context) -> Run:
    if len(operands) > 2 or isinstance(operands[1], ArrayOf):
        return _not(_in(operands, context))
    if _is_decided(operands[0], operands[1], context):
        return _DECIDED[False]
    return _in_one(operands[0], operands[1], lambda difference: difference != 0, context.hidden)


def _group(tested: Expression, rule: Rule, items: Sequence[Expression]) -> Run:
    """Return the function that evaluates whether a value equals one of some items.

    Its time does not grow with the number of constant items.
    """
    read = _converted(tested, rule.converters)
    key = rule.key
    difference = rule.difference
    runs = [_converted(item, rule.converters) for item in items if key is None or not item.is_constant]
    constants = [_converted(item, rule.converters)(None) for item in items if key and item.is_constant]
    keys = frozenset() if key is None else frozenset(key(each) for each in constants if each is not NULL)
    unknown: Any = NULL if NULL in constants else False

    def run(document: Json) -> Any:
        value = read(document)
        if key is not None and key(value) in keys:
            return True
        known = unknown
        for other in runs:
            that = other(document)
            if that is NULL:
                known = NULL
            elif difference(value, that) == 0:
                return True
        return known

    return run


def _in_one(first: Node, other: Node, holds: Callable[[int], bool], context: Context) -> Run:
    """Return an ``in`` with one right operand: search an array, compare with any other value."""
    if not isinstance(other, ArrayOf):
        return _compare(first, other, holds, context, unquote=True)
    if isinstance(first, Key):
        raise NotServed("in with an array and the column _id")
    items = compile_node(other, context.hidden).run
    value = json_of(first, context) if isinstance(first, Value) else compile_node(first, context.hidden).run

    def run(document: Json) -> Any:
        candidate = value(document)
        return NULL if candidate is NULL else contains(items(document), candidate, context.check)

    return run


def _between(operands: Sequence[Node], context: Context) -> Run:
    context = context.inside
    bounds = [_unquoted(each, context) for each in operands[1:]]
    expressions = [_by_key(operands[0], _unquoted(operands[0], context), bounds, context), *bounds]
    types = {each.type for each in expressions}
    if Type.JSON in types and operands[1] == operands[2] and is_constant(operands[1]):
        raise NotServed("between of equal bounds with an array, an object or a JSON text")
    if Type.KEY in types and not types <= TEXTS:
        raise NotServed("between of the column _id and a number")
    rule = rule_of(types, context.is_strict)
    tested, low, high = (_converted(each, rule.converters) for each in expressions)
    difference = rule.difference

    def run(document: Json) -> Any:
        value = tested(document)
        if value is NULL:
            return NULL
        least = low(document)
        most = high(document)
        if (least is not NULL and difference(value, least) < 0) or (most is not NULL and difference(value, most) > 0):
            return False
        return NULL if least is NULL or most is NULL else True

    return run


def _like(operands: Sequence[Node], context: Context) -> Run:
    expressions = [_unquoted(each, context.hidden) for each in operands[:2]]
    types = {each.type for each in expressions}
    if Type.LITERAL in types and not types & {Type.TEXT, Type.JSON, Type.KEY}:
        raise NotServed("comparison of two texts of the statement")
    text, pattern = (_converted(each, AS_TEXT) for each in expressions)
    as_read = bytewise if Type.KEY in types else str
    escape = _escape(operands[2], context) if operands[2:] else "\\"
    check = context.check

    def run(document: Json) -> Any:
        check()
        this = text(document)
        if this is NULL:
            return NULL
        that = pattern(document)
        return NULL if that is NULL else like_pattern(as_read(that), escape)(as_read(this))

    return run


def _escape(node: Node, context: Context) -> str:
    """Return the escape character of LIKE; empty for none.

    Raises:
        InvalidEscape: It is not a constant, or longer than one character.
    """
    expression = compile_node(node, context.hidden)
    value = _converted(expression, AS_TEXT)(None) if expression.is_constant else "no constant"
    if value is NULL:
        return "\\"
    if len(value) > 1:
        raise InvalidEscape
    return value


OPERATORS: Mapping[str, _Compile] = {
    "==": _comparison(lambda difference: difference == 0),
    "!=": _comparison(lambda difference: difference != 0, may_be_indexed=False),
    "<": _comparison(lambda difference: difference < 0),
    "<=": _comparison(lambda difference: difference <= 0),
    ">": _comparison(lambda difference: difference > 0),
    ">=": _comparison(lambda difference: difference >= 0),
    "&&": _and_or(decisive=False),
    "||": _and_or(decisive=True),
    "not": _negation,
    "!": _negation,
    "is": _is,
    "is_not": _negated(_is),
    "in": _in,
    "not_in": _not_in,
    "between": _between,
    "not_between": _negated(_between),
    "like": _like,
    "not_like": _negated(_like),
}
