# Prints C text as FILE:LINE:CODE with comments removed and what stands inside string and
# character literals blanked, so that a check on words does not see prose.
FNR == 1 { inside = 0 }
{
    out = ""
    quote = ""
    n = length($0)
    for (i = 1; i <= n; i++) {
        c = substr($0, i, 1)
        two = substr($0, i, 2)
        if (inside) {
            if (two == "*/") { inside = 0; i++ }
        } else if (quote != "") {
            if (c == "\\") i++
            else if (c == quote) { out = out c; quote = "" }
        } else if (two == "/*") {
            inside = 1
            i++
        } else if (two == "//") {
            break
        } else {
            if ((c == "\"" && $0 !~ /^[ \t]*#[ \t]*include/) || c == "'") quote = c
            out = out c
        }
    }
    if (out ~ /[^ \t]/) print FILENAME ":" FNR ":" out
}
