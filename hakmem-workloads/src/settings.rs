//! The parameters of one run.

use std::ops::Index;

use crate::workload::Workload;

/// A value for every parameter of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings(Vec<(&'static str, u64)>);

impl Settings {
    /// The workload's defaults with `values` over them; says what is allowed where one is not.
    pub fn resolve(workload: &Workload, values: &[(String, String)]) -> Result<Self, String> {
        let mut settings = Self(workload.parameters.iter().map(|p| (p.name, p.default)).collect());
        for (name, value) in values {
            let Some(at) = workload.parameters.iter().position(|parameter| parameter.name == name) else {
                let names: Vec<_> = workload.parameters.iter().map(|parameter| parameter.name).collect();
                return Err(format!(
                    "{}: no parameter {name}; there are {}",
                    workload.name,
                    names.join(", ")
                ));
            };
            let parameter = &workload.parameters[at];
            match value.parse() {
                Ok(number) if (parameter.least..=parameter.most).contains(&number) => {
                    settings.0[at].1 = number
                }
                _ => {
                    return Err(format!(
                        "{}: {name}={value}: expected a whole number from {} to {} ({})",
                        workload.name, parameter.least, parameter.most, parameter.help
                    ));
                }
            }
        }
        if let (Some(min), Some(max)) = (settings.get("min"), settings.get("max")) {
            if min > max {
                return Err(format!("{}: min={min} is above max={max}", workload.name));
            }
        }
        Ok(settings)
    }

    /// The value of a parameter, if the workload has it.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.iter().find(|(own, _)| *own == name).map(|(_, value)| *value)
    }

    /// The value of a parameter that the workload has, as a size or a count.
    pub(crate) fn size(&self, name: &str) -> usize {
        self[name] as usize
    }
}

impl Index<&str> for Settings {
    type Output = u64;

    fn index(&self, name: &str) -> &u64 {
        let found = self.0.iter().find(|(own, _)| *own == name);
        &found.unwrap_or_else(|| panic!("the workload does not declare its parameter {name}")).1
    }
}

impl std::fmt::Display for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, (name, value)) in self.0.iter().enumerate() {
            write!(f, "{}{name}={value}", if i == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}
