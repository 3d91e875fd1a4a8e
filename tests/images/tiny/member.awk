# Prints one member of a JSON object, by its `name`: a text as it is meant, anything else as it is written. Records end at
# quotation marks, so every second one is a text.
BEGIN { RS = "\""; depth = 0 }

is_text {
    text = text $0
    if (match($0, /\\+$/) && RLENGTH % 2) { text = text "\""; next }
    is_text = 0
    if (is_value) { printf "%s", meant(text); exit }
    if (is_taken) taken = taken "\"" text "\""
    last = text
    next
}

{
    rest = $0
    is_text = 1
    text = ""
    if (!is_taken && depth == 1 && last == name && sub(/^[ \n]*:[ \n]*/, "", rest)) {
        if (rest == "") { is_value = 1; next }
        is_taken = 1
    }
    last = ""
    read_structure(rest)
}

END { if (is_taken) { sub(/[ \n]+$/, "", taken); printf "%s", taken } }

# Follows the braces; what belongs to the wanted member is taken until its end.
function read_structure(rest,   at, character) {
    for (at = 1; at <= length(rest); at++) {
        character = substr(rest, at, 1)
        if (is_taken && depth == 1 && (character == "," || character == "}")) exit
        if (character == "{" || character == "[") depth++
        if (character == "}" || character == "]") depth--
        if (is_taken) taken = taken character
    }
}

function meant(text,   at, out, character) {
    while ((at = index(text, "\\"))) {
        out = out substr(text, 1, at - 1)
        character = substr(text, at + 1, 1)
        text = substr(text, at + 2)
        if (character == "u") { character = sprintf("%c", hex(substr(text, 1, 4))); text = substr(text, 5) }
        else if (index("ntrbf", character)) character = substr("\n\t\r\b\f", index("ntrbf", character), 1)
        out = out character
    }
    return out text
}

function hex(digits,   at, value) {
    for (at = 1; at <= 4; at++) value = value * 16 + index("0123456789abcdef", tolower(substr(digits, at, 1))) - 1
    return value
}
