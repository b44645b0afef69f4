//! The way of their own that unary calls have, and the demands of methods of all kinds, in what
//! tonic-prost-build has generated.

use std::collections::BTreeMap;

use proc_macro2::TokenStream;
use prost_build::{Method, Service, ServiceGenerator};
use quote::{ToTokens as _, format_ident, quote};
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::{
    Arm, Expr, ExprMethodCall, FnArg, GenericArgument, ImplItem, ImplItemFn, Item, ItemImpl,
    ItemMod, Lit, Member, Pat, PatLit, PathArguments, TraitItem, parse_quote,
};

use crate::demand::{Demand, Evidence};

/// Generates services by another generator, and changes what that has made.
pub(crate) struct Generator {
    pub(crate) services: Box<dyn ServiceGenerator>,
    /// Unary calls have a way of their own; else only those with a demand are changed.
    pub(crate) is_native: bool,
    /// What methods demand, by their paths.
    pub(crate) demands: BTreeMap<String, Demand>,
}

impl ServiceGenerator for Generator {
    fn generate(&mut self, service: Service, buf: &mut String) {
        let mut text = String::new();
        let described = Described::new(&service, self);
        self.services.generate(service, &mut text);
        if !self.is_native && described.demands.is_empty() {
            return buf.push_str(&text);
        }
        let mut file = syn::parse_file(&text).expect("tonic-prost-build generates Rust");
        let mut blocking = None;
        for item in &mut file.items {
            let Item::Mod(module) = item else { continue };
            let name = module.ident.to_string();
            if let Some(name) = name.strip_suffix("_client") {
                described.change_client(module);
                if cfg!(feature = "blocking") && self.is_native {
                    blocking = Some(described.blocking_client(name, module));
                }
            } else if name.ends_with("_server") {
                described.change_server(module);
            }
        }
        file.items.extend(blocking.map(Item::from));
        buf.push_str(&prettyplease::unparse(&file));
    }

    fn finalize(&mut self, buf: &mut String) {
        self.services.finalize(buf);
    }

    fn finalize_package(&mut self, package: &str, buf: &mut String) {
        self.services.finalize_package(package, buf);
    }
}

/// A service as its descriptor has it.
struct Described {
    /// Its trait, and the beginning of the names of its types.
    ident: String,
    /// With its package, as in paths.
    name: String,
    /// Those with a way of their own.
    unary: Vec<Method>,
    /// The others.
    ordinary: Vec<Method>,
    /// What its methods demand, by their paths.
    demands: BTreeMap<String, Demand>,
}

impl Described {
    fn new(service: &Service, generator: &Generator) -> Self {
        let Service { name, proto_name, package, .. } = service;
        let dot = if package.is_empty() { "" } else { "." };
        let is_unary = |method: &Method| {
            generator.is_native && !method.client_streaming && !method.server_streaming
        };
        let (unary, ordinary) = service.methods.iter().cloned().partition(is_unary);
        let name_and_package = format!("{package}{dot}{proto_name}");
        let begin = format!("/{name_and_package}/");
        let own = generator.demands.iter().filter(|(path, _)| path.starts_with(&begin));
        Self {
            ident: name.clone(),
            name: name_and_package,
            unary,
            ordinary,
            demands: own.map(|(path, demand)| (path.clone(), *demand)).collect(),
        }
    }

    fn path(&self, method: &Method) -> String {
        format!("/{}/{}", self.name, method.proto_name)
    }

    /// What a method demands, as a static of the function that it stands in.
    fn demand(&self, method: &Method) -> Option<TokenStream> {
        let demand = self.demands.get(&self.path(method))?;
        let name = format!("{}/{}", self.name, method.proto_name);
        let seal = demand.seal.then(|| quote!(.sealed()));
        let sign = demand.sign.then(|| quote!(.signed()));
        let evidence = match demand.evidence {
            Evidence::Any => None,
            Evidence::Observed => Some(quote!(.observed())),
            Evidence::Image => Some(quote!(.image())),
            Evidence::Started => Some(quote!(.started())),
        };
        Some(quote! {
            static DEMAND: partywall::stubs::Demand =
                partywall::stubs::Demand::of(#name) #seal #sign #evidence;
        })
    }

    fn change_client(&self, module: &mut ItemMod) {
        visit_mut::visit_item_mod_mut(&mut Clients, module);
        for function in functions(module, |_| true) {
            let ordinary = self.ordinary.iter().find(|m| function.sig.ident == ident_of(m));
            if let Some(demand) = ordinary.and_then(|method| self.demand(method)) {
                let mut demanding = Demanding(0);
                demanding.visit_block_mut(&mut function.block);
                assert_eq!(demanding.0, 1, "tonic calls once in a method of a client");
                function.block.stmts.insert(0, parse_quote!(#demand));
            }
            let Some(method) = self.unary.iter().find(|m| function.sig.ident == ident_of(m)) else {
                continue;
            };
            let (service, name, path) = (&self.name, &method.proto_name, self.path(method));
            let demand = self.demand(method);
            let demanding = demand.as_ref().map(|_| quote!(.demanding(&DEMAND)));
            function.block = parse_quote!({
                static METHOD: partywall::stubs::Method =
                    partywall::stubs::Method::new(#service, #name, #path);
                #demand
                let mut call = partywall::stubs::Unary::new(&METHOD, request.into_request());
                self.inner #demanding .call(&mut call).await?;
                Ok(call.response())
            });
        }
    }

    /// A client for threads without a runtime: the unary methods of the changed one.
    fn blocking_client(&self, name: &str, module: &mut ItemMod) -> ItemMod {
        let (attributes, module_attributes) = (client_attributes(module), module.attrs.clone());
        let calls = functions(module, |_| true).filter_map(|function| {
            let method = self.unary.iter().find(|m| function.sig.ident == ident_of(m))?;
            let (service, name, path) = (&self.name, &method.proto_name, self.path(method));
            let mut function = function.clone();
            let demand = self.demand(method);
            let call = match &demand {
                None => quote!(call(&METHOD, request.into_request())),
                Some(_) => quote!(demanding(&DEMAND, &METHOD, request.into_request())),
            };
            function.sig.asyncness = None;
            function.block = parse_quote!({
                static METHOD: partywall::stubs::Method =
                    partywall::stubs::Method::new(#service, #name, #path);
                #demand
                self.inner.#call
            });
            Some(function)
        });
        let calls: Vec<ImplItemFn> = calls.collect();
        let client = format_ident!("{}Client", self.ident);
        let name = format_ident!("{name}_blocking");
        // A method of that name takes precedence.
        let into_inner = calls.iter().all(|call| call.sig.ident != "into_inner").then(|| {
            quote! {
                /// The channel.
                pub fn into_inner(self) -> partywall::blocking::Channel {
                    self.inner.into_inner()
                }
            }
        });
        let is_inner = |a: &&syn::Attribute| matches!(a.style, syn::AttrStyle::Inner(_));
        let (inner, outer): (Vec<_>, Vec<_>) = module_attributes.iter().partition(is_inner);
        let outer = outer.into_iter().filter(|attribute| !attribute.path().is_ident("doc"));
        parse_quote! {
            /// Generated client implementations for threads without a runtime.
            #(#outer)*
            pub mod #name {
                #(#inner)*
                #(#attributes)*
                #[derive(Debug)]
                pub struct #client {
                    inner: partywall::stubs::Blocking,
                }
                impl #client {
                    pub fn new(channel: partywall::blocking::Channel) -> Self {
                        Self { inner: partywall::stubs::Blocking::new(channel) }
                    }
                    #into_inner
                    /// Limits the maximum size of a decoded message.
                    ///
                    /// Default: `4MB`
                    #[must_use]
                    pub fn max_decoding_message_size(mut self, limit: usize) -> Self {
                        self.inner = self.inner.max_decoding_message_size(limit);
                        self
                    }
                    /// Limits the maximum size of an encoded message.
                    ///
                    /// Default: `usize::MAX`
                    #[must_use]
                    pub fn max_encoding_message_size(mut self, limit: usize) -> Self {
                        self.inner = self.inner.max_encoding_message_size(limit);
                        self
                    }
                    #(#calls)*
                }
            }
        }
    }

    fn change_server(&self, module: &mut ItemMod) {
        let server = format_ident!("{}Server", self.ident);
        let is_service = |implementation: &ItemImpl| {
            let name = implementation.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
            name.is_some_and(|segment| segment.ident == "Service")
        };
        let mut requests = BTreeMap::new();
        for function in functions(module, is_service) {
            if function.sig.ident == "call" {
                let mut arms = Arms { described: self, requests: BTreeMap::new() };
                arms.visit_block_mut(&mut function.block);
                requests = arms.requests;
                if self.unary.is_empty() {
                    return;
                }
                function.block.stmts.insert(0, parse_quote!(partywall::stubs::offer(&req, self);));
            }
        }
        let service = format_ident!("{}", self.ident);
        let by_arc = takes_arc(module, &self.ident);
        let (number, methods) = (self.unary.len(), self.unary.iter().enumerate());
        let methods = methods.map(|(number, method)| {
            let (path, request) = (self.path(method), &requests[&number]);
            quote!(partywall::stubs::Served::new::<#request>(#path))
        });
        let arms = self.unary.iter().enumerate().map(|(number, method)| {
            let ident = ident_of(method);
            let own = if by_arc { quote!(inner) } else { quote!(&inner) };
            let demand = self.demand(method);
            let demanding = demand.as_ref().map(|_| quote!(.demand(&DEMAND)?));
            quote! {
                #number => partywall::stubs::begin(async move {
                    #demand
                    <T as #service>::#ident(#own, request #demanding .decode()?).await
                })
            }
        });
        let table: ItemImpl = parse_quote! {
            impl<T: #service> partywall::stubs::Generated for #server<T> {
                fn methods(&self) -> &'static [partywall::stubs::Served] {
                    static METHODS: [partywall::stubs::Served; #number] = [#(#methods),*];
                    &METHODS
                }
                fn settings(&self) -> partywall::stubs::Settings {
                    partywall::stubs::Settings {
                        decoded: self.max_decoding_message_size,
                        encoded: self.max_encoding_message_size,
                    }
                }
                fn begin(
                    &self,
                    method: usize,
                    request: partywall::stubs::Incoming,
                ) -> partywall::stubs::Begun {
                    let inner = Arc::clone(&self.inner);
                    match method {
                        #(#arms,)*
                        _ => std::unreachable!("a number without a path"),
                    }
                }
            }
        };
        if let Some((_, items)) = &mut module.content {
            items.push(table.into());
        }
    }
}

/// Puts our ordinary way in the place of tonic's, in the arms of a service's unary methods. In those of
/// others with a demand, the demand is checked first.
struct Arms<'a> {
    described: &'a Described,
    /// The types of requests, as tonic's arms have them.
    requests: BTreeMap<usize, syn::Type>,
}

impl VisitMut for Arms<'_> {
    fn visit_arm_mut(&mut self, arm: &mut Arm) {
        let Pat::Lit(PatLit { lit: Lit::Str(text), .. }) = &arm.pat else { return };
        let path = text.value();
        let mut ordinary = self.described.ordinary.iter();
        let ordinary = ordinary.find(|method| self.described.path(method) == path);
        if let Some(demand) = ordinary.and_then(|method| self.described.demand(method)) {
            let body = &arm.body;
            arm.body = parse_quote!({
                #demand
                if let Some(refused) = partywall::stubs::refused(&DEMAND, &req) {
                    return refused;
                }
                #body
            });
        }
        let mut methods = self.described.unary.iter();
        let number = methods.position(|method| self.described.path(method) == path);
        if let Some(number) = number {
            let mut request = Request(None);
            request.visit_expr(&arm.body);
            self.requests.insert(number, request.0.expect("tonic has a type for each method"));
            arm.body = parse_quote!({
                let encodings =
                    [self.accept_compression_encodings, self.send_compression_encodings];
                partywall::stubs::ordinary(self.clone(), #number, encodings, req)
            });
        }
    }
}

/// What a type is a `tonic::server::UnaryService` of.
struct Request(Option<syn::Type>);

impl<'ast> Visit<'ast> for Request {
    fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
        if segment.ident == "UnaryService"
            && let PathArguments::AngleBracketed(arguments) = &segment.arguments
            && let Some(GenericArgument::Type(request)) = arguments.args.first()
        {
            self.0 = Some(request.clone());
        }
        visit::visit_path_segment(self, segment);
    }
}

/// The name of a method as Rust has it, which may be a keyword.
fn ident_of(method: &Method) -> syn::Ident {
    match method.name.strip_prefix("r#") {
        Some(name) => syn::Ident::new_raw(name, proc_macro2::Span::call_site()),
        None => format_ident!("{}", method.name),
    }
}

/// The functions of those implementations.
fn functions(
    module: &mut ItemMod,
    wanted: impl Fn(&ItemImpl) -> bool,
) -> impl Iterator<Item = &mut ImplItemFn> {
    let items = module.content.iter_mut().flat_map(|(_, items)| items);
    let implementations = items.filter_map(move |item| match item {
        Item::Impl(implementation) if wanted(implementation) => Some(implementation),
        _ => None,
    });
    implementations.flat_map(|implementation| &mut implementation.items).filter_map(|item| {
        match item {
            ImplItem::Fn(function) => Some(function),
            _ => None,
        }
    })
}

/// The attributes of a client's type but what it derives, which another type may not be able to.
fn client_attributes(module: &ItemMod) -> Vec<syn::Attribute> {
    let items = module.content.iter().flat_map(|(_, items)| items);
    let mut types = items.filter_map(|item| match item {
        Item::Struct(client) => Some(&client.attrs),
        _ => None,
    });
    let attributes = types.next().into_iter().flatten();
    attributes.filter(|attribute| !attribute.path().is_ident("derive")).cloned().collect()
}

/// Whether the methods of a service's trait take it as an `Arc`.
fn takes_arc(module: &ItemMod, service: &str) -> bool {
    let items = module.content.iter().flat_map(|(_, items)| items);
    items
        .filter_map(|item| match item {
            Item::Trait(described) if described.ident == service => Some(described),
            _ => None,
        })
        .flat_map(|described| &described.items)
        .any(|item| match item {
            TraitItem::Fn(function) => {
                matches!(function.sig.inputs.first(), Some(FnArg::Receiver(own)) if own.colon_token.is_some())
            }
            _ => false,
        })
}

/// Puts our client in the place of tonic's.
struct Clients;

impl VisitMut for Clients {
    fn visit_path_mut(&mut self, path: &mut syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let is_grpc =
            |names: &[String]| names.starts_with(&["tonic", "client", "Grpc"].map(String::from));
        if is_grpc(&names) {
            let rest = path.segments.iter().skip(3);
            let arguments = path.segments[2].arguments.to_token_stream();
            *path = parse_quote!(partywall::stubs::Grpc #arguments #(:: #rest)*);
        }
        visit_mut::visit_path_mut(self, path);
    }
}

/// Puts our client with a demand in the place of the client, and counts its calls.
struct Demanding(usize);

impl VisitMut for Demanding {
    fn visit_expr_method_call_mut(&mut self, call: &mut ExprMethodCall) {
        const KINDS: [&str; 4] = ["unary", "client_streaming", "server_streaming", "streaming"];
        let is_inner = matches!(&*call.receiver, Expr::Field(field)
            if matches!(&field.member, Member::Named(name) if name == "inner"));
        if is_inner && KINDS.iter().any(|kind| call.method == kind) {
            let inner = &call.receiver;
            call.receiver = parse_quote!(#inner.demanding(&DEMAND));
            self.0 += 1;
        }
        visit_mut::visit_expr_method_call_mut(self, call);
    }
}
