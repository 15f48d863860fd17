// So many objects with destructors that registering them allocates, before anything else does.
static int ended;
struct Object {
    volatile int value = 1;
    ~Object() { ended++; }
};
#define TEN(name) Object name##0, name##1, name##2, name##3, name##4, name##5, name##6, name##7, name##8, name##9;
TEN(a) TEN(b) TEN(c) TEN(d) TEN(e) TEN(f) TEN(g) TEN(h)
int main() { return a0.value + h9.value - 2; }
