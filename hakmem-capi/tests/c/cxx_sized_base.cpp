// Deletes derived objects through a base class without a virtual destructor: undefined, and common.
#include <cstdio>
struct Base {
    int value = 1;
};
struct Derived : Base {
    char more[500] = {};
};
struct Huge : Base {
    char more[100000] = {};
};
int main() {
    for (int i = 0; i < 10000; i++) {
        Base *small = i % 2 ? new Derived : new Base, *huge = new Huge;
        delete small;
        delete huge;
    }
    puts("survived");
}
