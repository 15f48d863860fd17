// The same program as C++: the header names C functions there too.
#include "prefix_api.c"
