# Standard input as a JSON text. Its last line ends with one character more than is meant: by that, a missing newline at
# its end shows.
NR > 1 { printf "%s%s\\n", NR == 2 ? "\"" : "", held }
{
    gsub(/\\/, "\\\\")
    gsub(/"/, "\\\"")
    gsub(/\t/, "\\t")
    gsub(/\r/, "\\r")
    gsub(/[\001-\010\013\014\016-\037]/, "?")
    held = $0
}
END { printf "%s%s\"", NR == 1 ? "\"" : "", substr(held, 1, length(held) - 1) }
